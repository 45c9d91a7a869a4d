"""Which examples a run was trained and measured on, by their content: names and row numbers change, pixels do not."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from ..utils.io import Columns
from .arrays import UNLABELED
from .dataset import CHUNK, Dataset, Examples
from .ssl_data import SSLData


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
    source = data.dataset.bank.source if data.dataset.bank else data.dataset
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
