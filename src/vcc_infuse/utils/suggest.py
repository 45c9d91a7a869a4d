"""Did you mean …? Suggestions for a mistyped word or path, as the end of an error message."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean …?` with the nearest known words; empty if nothing is near.

    >>> did_you_mean("FixMach", ["FixMatch", "VCC"])
    '; did you mean FixMatch?'
    """
    close = difflib.get_close_matches(word, list(known), n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(close)}?" if close else ""


def did_you_mean_path(path: str, known: Iterable[str] = ()) -> str:
    """The same for a path, among the known names and the files beside it."""
    folder = Path(path).parent
    siblings = [str(folder / p.name) for p in folder.iterdir()] if folder.is_dir() else []
    return did_you_mean(path, [*known, *siblings])
