"""Did you mean …? What a mistyped word or path may have meant, as the end of an error message."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from pathlib import Path

NEAR = 0.65  # dgo and dog have a similarity of 0.67, plastic and glass one of 0.5


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean …?` with the nearest known words; empty if none is near.

    >>> did_you_mean("--stps", ["--steps", "--seed"])
    '; did you mean --steps?'
    """
    return _phrase(_nearest(word, list(known)))


def did_you_mean_path(path: str, known: Iterable[str] = ()) -> str:
    """The same for a path, among the files beside it and the known names."""
    folder = Path(path).parent
    hidden = Path(path).name.startswith(".")
    files = folder.iterdir() if folder.is_dir() else ()
    siblings = [file.name for file in files if hidden or not file.name.startswith(".")]
    beside = [str(folder / name) for name in _nearest(Path(path).name, siblings)]
    return _phrase([*beside, *_nearest(path, list(known))])


def _nearest(word: str, known: list[str]) -> list[str]:
    """At most three words, best first. What all options begin with (`--algorithm.`) does not make them similar."""
    prefix = re.match(r"(--)?(\w+\.)*", word)
    shared = prefix.end() if prefix and all(name.startswith(prefix[0]) for name in known) else 0
    endings = {name[shared:]: name for name in known}
    near = difflib.get_close_matches(word[shared:], endings, n=3, cutoff=NEAR)
    longer = [rest for rest in endings if len(word) > shared + 1 and rest.startswith(word[shared:])]
    return [endings[rest] for rest in (near or longer)[:3]]


def _phrase(words: list[str]) -> str:
    return f"; did you mean {' or '.join(words)}?" if words else ""
