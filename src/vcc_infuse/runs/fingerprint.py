"""What makes a run: its options, classes, data and split, so that another run is not mistaken for it.

Examples are known by their content: names and row numbers change, pixels do not.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NotRequired, TypedDict

import numpy as np

from ..data.dataset import CHUNK, UNLABELED, Dataset, Examples
from ..data.ssl_data import SSLData
from ..errors import UserError
from ..utils.io import Columns

# A run may read its data from another place, use another device and print something else; the data are compared by
# their content.
MOVABLE = {
    "data", "root", "cache", "label_file", "download", "device", "progress", "out", "report", "tracker", "config",
    "resume", "dry_run", "force", "import", "trust_code",
}  # fmt: skip


class Fingerprint(TypedDict):
    """What a checkpoint or a model was trained with; with another fingerprint it belongs to another run."""

    config: dict[str, Any]  # the options that decide what is trained; see `options_of`
    classes: list[str]
    data: str  # digest of the examples that are trained and measured on
    split: str  # digest of the labeled, pool and held-out row numbers
    network: str | None  # the frozen network and its views, if there is a bank
    processes: int
    total: int  # steps of the whole run
    step: NotRequired[int]  # of the checkpoint that it was read from


def row_digests(x: np.ndarray) -> np.ndarray:
    """A 64-bit number per row that changes with its content, of shape (rows,)."""
    digests = np.empty(len(x), np.uint64)
    for start in range(0, len(x), CHUNK):
        block = np.ascontiguousarray(x[start : start + CHUNK])
        for place, row in enumerate(block, start):
            digests[place] = int.from_bytes(hashlib.sha256(row.data).digest()[:8], "little")
    return digests


def used_rows(data: SSLData) -> Columns:
    """Digests and labels of the rows that are trained on (`train`) and measured on (`test`)."""
    source = data.dataset.images  # of embedded views, what they come from
    used = np.unique(np.concatenate([data.split.labeled, data.split.pool, data.split.held_out]))
    train = Examples(source.train.x[used], source.train.y[used])
    parts = {"train": train} | ({} if source.test is None else {"test": source.test})
    columns: Columns = {}
    for name, part in parts.items():
        columns |= {name: row_digests(part.x), f"{name}_labels": np.asarray(part.y, np.int64)}
    return columns


def content_digest(*columns: np.ndarray) -> str:
    """One digest of several columns of numbers."""
    digest = hashlib.sha256()
    for column in columns:
        digest.update(f"{column.dtype} {column.shape}".encode())
        digest.update(np.ascontiguousarray(column).data)
    return digest.hexdigest()[:32]


def find_rows(dataset: Dataset, rows: Columns, classes: Sequence[str]) -> tuple[Examples, int]:
    """The examples of a dataset that a run was measured on, wherever they are now, and how many are missing.

    Labels are class numbers of the run. Rows with the same content and label are interchangeable.
    """
    place = {name: number for number, name in enumerate(classes)}
    numbers = np.array([*(place.get(name, UNLABELED) for name in dataset.classes), UNLABELED])  # −1 is the last
    places: dict[tuple[int, int], list[tuple[int, int]]] = {}
    parts = [part for part in (dataset.test, dataset.train) if part is not None]
    for number, part in enumerate(parts):
        for row, key in enumerate(zip(row_digests(part.x).tolist(), numbers[part.y].tolist(), strict=True)):
            places.setdefault(key, []).append((number, row))
    wanted = zip(rows["test"].tolist(), rows["test_labels"].tolist(), strict=True)
    matches = [(*places[key].pop(0), key[1]) for key in wanted if places.get(key)]
    x = [parts[number].x[row] for number, row, _ in matches]
    y = np.array([label for _, _, label in matches], np.int64)
    return Examples(np.stack(x) if x else dataset.train.x[:0], y), len(rows["test"]) - len(matches)


def same_rows(part: Examples, rows: Columns) -> bool:
    """Whether these are the examples that a run was measured on, in their order."""
    return np.array_equal(part.y, rows["test_labels"]) and np.array_equal(row_digests(part.x), rows["test"])


def overlap(part: Examples, rows: Columns) -> int:
    """How many of these examples a run was trained on."""
    return int(np.isin(row_digests(part.x), rows["train"]).sum())


def options_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a config.yaml that decide what is trained, by their dotted names."""
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


def changed_rows(before: Columns | None, now: Columns) -> list[str]:
    """One sentence per part of the data on how many images are new or gone."""
    changes = []
    empty = np.empty(0, np.int64)
    for part, title in (("train", "training"), ("test", "test")):
        columns = [
            [rows.get(name, empty).tolist() for name in (part, f"{part}_labels")] for rows in (before or {}, now)
        ]
        old, new = (Counter(zip(*pair, strict=True)) for pair in columns)
        if old != new:
            added = (new - old).total()
            changes.append(f"data: {added} {title} images are new, {(old - new).total()} are gone or changed")
    return changes or ["data: the images are the same, but in another order"]


def compare(before: Fingerprint, now: Fingerprint, rows: tuple[Columns | None, Columns]) -> list[str]:
    """One sentence per difference, the likely cause first; `rows` are the `used_rows` of both runs."""
    changes = changed_options(before.get("config", {}), now["config"])
    old = before.get("classes", [])
    new = now["classes"]
    named = [f"class {n} was {a!r}, is {b!r}" for n, (a, b) in enumerate(zip(old, new, strict=False)) if a != b]
    if not named and len(old) != len(new):
        named = [f"there were {len(old)} classes, are {len(new)}"]
    changes += named
    if before.get("data") != now["data"]:
        changes += changed_rows(*rows)
    if before.get("split") != now["split"]:
        changes.append("split: other images are labeled or in the pool than before")
    if before.get("network") != now["network"]:
        changes.append("network: the frozen network, its weights or its views are not those of the run")
    if before.get("processes") != now["processes"]:
        changes.append(f"processes: was {before.get('processes')}, is {now['processes']}")
    return changes


def refuse(changes: list[str], folder: object, force: bool, remedy: str) -> str | None:
    """Raise the first change as one line, or return the line if the user insists; None if nothing changed."""
    if not changes:
        return None
    more = f" (and {len(changes) - 1} more)" if len(changes) > 1 else ""
    line = f"{folder} has changed: {changes[0]}{more}"
    if not force:
        raise UserError(f"{line}; {remedy}")
    return f"{line}; continuing because of --force"
