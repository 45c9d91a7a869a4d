"""The files of a bank: features, marks of what is there, and checksums by which damage is found.

Features are written first, then their checksum, then their mark, so that a mark is never there without its features.
"""

from __future__ import annotations

import warnings
import zlib
from functools import cached_property
from pathlib import Path

import numpy as np

from .array_file import ArrayFile

CHUNK = 256


class StoredViews:
    """Features of the rows of one part, N × slots × D, in chunks of 256 rows.

    Of a `lazy` part a chunk has the plain view only, which stands for the others until these come row by row.

    Args:
        folder: where the files are.
        part: the beginning of their names.
        shape: rows, slots and features.
        lazy: whether views but the plain one come row by row.
    """

    def __init__(self, folder: Path, part: str, shape: tuple[int, int, int], lazy: bool = False) -> None:
        self.folder, self.lazy = folder, lazy
        self.file = ArrayFile(folder / f"{part}.npy", shape, np.float16)
        self.features = self.file.array
        chunks = -(-shape[0] // CHUNK)
        self.done = ArrayFile(folder / f"{part}-done.npy", (chunks,), np.uint8)
        self.sums = ArrayFile(folder / f"{part}-sums.npy", (chunks,), np.uint64)
        self._verify()

    def chunk(self, number: int) -> np.ndarray:
        """The rows of a chunk."""
        return np.arange(number * CHUNK, min((number + 1) * CHUNK, len(self.features)))

    def missing(self) -> list[int]:
        """The chunks that are not there."""
        found: list[int] = np.flatnonzero(self.done.array == 0).tolist()
        return found

    def missing_rows(self, rows: np.ndarray) -> np.ndarray:
        """Those of the rows that have a plain view only."""
        found: np.ndarray = rows[self.row_done.array[rows] == 0]
        return found

    def store(self, number: int, features: np.ndarray) -> None:
        """Write a chunk; the first slot stands for those that are not given."""
        missing = self.features.shape[1] - features.shape[1]
        self.file.write(self.chunk(number), np.concatenate([features, np.repeat(features[:, :1], missing, 1)], 1))
        self.sums.write(np.array([number]), np.array([self._checksum(number)]))
        self.done.write(np.array([number]), np.ones(1))

    def store_rows(self, rows: np.ndarray, further: np.ndarray) -> None:
        """Write all views but the plain one of some rows."""
        whole = np.concatenate([self.features[rows, :1], further], 1)
        self.file.write(rows, whole)
        self.row_sums.write(rows, np.array([checksum(row) for row in whole]))
        self.row_done.write(rows, np.ones(len(rows)))

    @cached_property
    def row_done(self) -> ArrayFile:
        """Marks of the rows whose views are all there."""
        return ArrayFile(self.folder / "rows-done.npy", (len(self.features),), np.uint8)

    @cached_property
    def row_sums(self) -> ArrayFile:
        """Their checksums."""
        return ArrayFile(self.folder / "rows-sums.npy", (len(self.features),), np.uint64)

    def _checksum(self, number: int) -> int:
        rows = self.features[self.chunk(number)]
        return checksum(rows[:, :1] if self.lazy else rows)

    def _verify(self) -> None:
        """Forget chunks that are not what was written, so that they are embedded again."""
        marked = np.flatnonzero(self.done.array).tolist()
        bad = [number for number in marked if int(self.sums.array[number]) != self._checksum(number)]
        if bad:
            self.done.write(np.array(bad), np.zeros(len(bad)))
            self._warn(len(bad), "chunks")
        if self.lazy:
            self._verify_rows(np.concatenate([np.arange(0), *(self.chunk(number) for number in bad)]))

    def _verify_rows(self, lost: np.ndarray) -> None:
        """The same for rows. A row whose views are not there repeats its plain view."""
        marked, x = np.flatnonzero(self.row_done.array), self.features
        bad = [row for row in marked if int(self.row_sums.array[row]) != checksum(x[row])]
        if bad:
            self._warn(len(bad), "rows")
        forgotten = np.union1d(lost, bad).astype(np.int64)
        if len(forgotten):
            self.row_done.write(forgotten, np.zeros(len(forgotten)))
        for number in range(len(self.done.array)):
            rows = self.missing_rows(self.chunk(number))
            rows = rows[(x[rows, 1:] != x[rows, :1]).any((1, 2))]
            if len(rows):  # a process was killed between the views and their mark
                self.file.write(rows, np.repeat(x[rows, :1], x.shape[1], 1))

    def _warn(self, count: int, what: str) -> None:
        warnings.warn(f"{count} {what} of the bank {self.folder} were damaged and are embedded again", stacklevel=2)


def checksum(rows: np.ndarray) -> int:
    """CRC-32 of the values, above 0, which an unwritten checksum is."""
    return zlib.crc32(np.ascontiguousarray(rows).data) + 1
