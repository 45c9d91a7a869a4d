"""What makes a run this run: its options, classes, data, split and number of processes. A difference is named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ..errors import UserError
from ..utils.io import Columns

Identity = dict[str, Any]
# A run may find its data elsewhere, use another device and show something else. What the data hold is compared itself.
MOVABLE = {
    "data", "root", "cache", "label_file", "download", "device", "progress", "out", "report", "tracker", "config",
    "resume", "dry_run", "force", "import", "trust_code",
}  # fmt: skip
WHAT = {
    "split": "other images are labeled or in the pool than before",
    "network": "the frozen network, its weights or its views are not those of the run",
}


def options_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a config.yaml by their dotted names, as far as they decide what is trained."""
    return {name: value for name, value in _flat(dict(config)) if name.partition(".")[0] not in MOVABLE}


def _flat(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if not isinstance(value, dict) or not value:
        yield prefix.removesuffix("."), value
        return
    for key, item in value.items():
        yield from _flat(item, prefix if key == "init_args" else f"{prefix}{key}.")


def changed_options(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """One sentence per option that differs."""
    names = [name for name in dict.fromkeys([*before, *now]) if before.get(name) != now.get(name)]
    return [f"config: {name} was {before.get(name)}, is {now.get(name)}" for name in names]


def changed_classes(before: list[str], now: list[str]) -> list[str]:
    """The first class that is another one, or how many there are."""
    pairs = zip(before, now, strict=False)
    named = [f"class {n} was {old!r}, is {new!r}" for n, (old, new) in enumerate(pairs) if old != new]
    return named or ([f"there were {len(before)} classes, are {len(now)}"] if len(before) != len(now) else [])


def changed_rows(before: Columns | None, now: Columns) -> list[str]:
    """How many images came and went."""
    found = []
    for part, title in (("train", "training"), ("test", "test")):
        old, new = (_count(rows, part) for rows in (before or {}, now))
        came, went = (new - old).total(), (old - new).total()
        if came or went:
            found.append(f"data: {came} {title} images are new, {went} are gone or changed")
    return found or ["data: the images are the same, but in another order"]


def _count(rows: Columns, part: str) -> Counter[tuple[int, int]]:
    empty = np.empty(0, np.int64)
    columns = (rows.get(name, empty).tolist() for name in (part, f"{part}_labels"))
    return Counter(zip(*columns, strict=True))


def compare(before: Identity, now: Identity, rows: tuple[Columns | None, Columns]) -> list[str]:
    """What differs, the likely cause first."""
    found = changed_options(before.get("config", {}), now["config"])
    found += changed_classes(before.get("classes", []), now["classes"])
    found += changed_rows(*rows) if before.get("data") != now["data"] else []
    found += [f"{name}: {text}" for name, text in WHAT.items() if before.get(name) != now[name]]
    count, processes = before.get("processes"), now["processes"]
    return found + ([f"processes: was {count}, is {processes}"] if count != processes else [])


def refuse(found: list[str], folder: object, force: bool, remedy: str) -> str | None:
    """Raise the first difference as one line; None if there is none, the line itself if the user insists."""
    if not found:
        return None
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    if not force:
        raise UserError(f"{folder} is not as it was: {found[0]}{more}; {remedy}")
    return f"{folder} is not as it was: {found[0]}{more}; going on because of --force"
