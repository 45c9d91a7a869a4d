"""Which examples a run was trained and measured on, by their content: names and row numbers change, pixels do not."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..data.dataset import CHUNK, Dataset, Examples
from ..data.sources.arrays import UNLABELED
from ..data.ssl_data import SSLData
from ..errors import UserError
from ..utils.io import Columns


def row_digests(x: np.ndarray) -> np.ndarray:
    """A 64-bit number per row that changes with its content."""
    found = np.empty(len(x), np.uint64)
    for start in range(0, len(x), CHUNK):
        block = np.ascontiguousarray(x[start : start + CHUNK])
        for place, row in enumerate(block, start):
            found[place] = int.from_bytes(hashlib.sha256(row.data).digest()[:8], "little")
    return found


def identify(data: SSLData) -> Columns:
    """Digests and labels of the rows that are trained on, and of those that are measured on.

    Of embedded views, those of the images they come from.
    """
    source = data.dataset.images
    used = np.unique(np.concatenate([data.split.labeled, data.split.pool, data.split.held_out]))
    train = Examples(source.train.x[used], source.train.y[used])
    parts = {"train": train} | ({} if source.test is None else {"test": source.test})
    found: Columns = {}
    for name, part in parts.items():
        found |= {name: row_digests(part.x), f"{name}_labels": np.asarray(part.y, np.int64)}
    return found


def content_digest(*columns: np.ndarray) -> str:
    """One digest of several columns of numbers."""
    digest = hashlib.sha256()
    for column in columns:
        digest.update(f"{column.dtype} {column.shape}".encode())
        digest.update(np.ascontiguousarray(column).data)
    return digest.hexdigest()[:32]


def find_rows(dataset: Dataset, rows: Columns, classes: Sequence[str]) -> tuple[Examples, int]:
    """The examples of a dataset that a run was measured on, wherever they are now; and how many are missing.

    Labels are class numbers of the run. Two rows of the same content and label stand for each other.
    """
    place = {name: number for number, name in enumerate(classes)}
    numbers = np.array([*(place.get(name, UNLABELED) for name in dataset.classes), UNLABELED])  # −1 is the last
    places: dict[tuple[int, int], list[tuple[int, int]]] = {}
    parts = [part for part in (dataset.test, dataset.train) if part is not None]
    for number, part in enumerate(parts):
        for row, key in enumerate(zip(row_digests(part.x).tolist(), numbers[part.y].tolist(), strict=True)):
            places.setdefault(key, []).append((number, row))
    wanted = zip(rows["test"].tolist(), rows["test_labels"].tolist(), strict=True)
    found = [(*places[key].pop(0), key[1]) for key in wanted if places.get(key)]
    x = [parts[number].x[row] for number, row, _ in found]
    y = np.array([label for _, _, label in found], np.int64)
    return Examples(np.stack(x) if x else dataset.train.x[:0], y), len(rows["test"]) - len(found)


def same_rows(part: Examples, rows: Columns) -> bool:
    """Whether these are the examples that a run was measured on, in their order."""
    return np.array_equal(part.y, rows["test_labels"]) and np.array_equal(row_digests(part.x), rows["test"])


def overlap(part: Examples, rows: Columns) -> int:
    """How many of these examples a run was trained on."""
    return int(np.isin(row_digests(part.x), rows["train"]).sum())


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
