"""Features of a bank in files of fixed size that several processes fill and read; memory does not grow with them.

Every row has a mark: how many of its views are written, and their checksum, which is compared when the files are
opened: what is damaged loses its mark and is embedded again.
"""

from __future__ import annotations

import errno
import os
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tokenize import TokenError

import numpy as np

from ..errors import UserError

CHUNK = 256  # rows
CHECKSUM_BITS = 32  # of a mark; the number of views is above them


class StoredViews:
    """Features of the rows of one part, `(rows, slots, features)`, embedded in chunks of 256 rows.

    If `lazy`, a row has the plain view only, which stands for the others until these are written.

    Args:
        folder: of the bank.
        part: name of the files.
        shape: (rows, slots, features).
        digests: of the images `(rows, 2)`, by which later banks find what they have in common with this one.
        lazy: whether rows may have a plain view only.
    """

    def __init__(
        self, folder: Path, part: str, shape: tuple[int, int, int], digests: np.ndarray, lazy: bool = False
    ) -> None:
        self.folder = folder
        self.lazy = lazy
        self.file = ArrayFile(folder / f"{part}.npy", shape, np.float16)
        self.features = self.file.array
        self.marks = ArrayFile(folder / f"{part}-marks.npy", shape[:1], np.uint64)
        self.digests = ArrayFile(folder / f"{part}-digests.npy", digests.shape, np.uint64)
        if not np.array_equal(self.digests.array, digests):  # a new file, or a damaged one
            self.digests.write(np.arange(len(digests)), digests)
        self._verify()

    def chunk(self, number: int) -> np.ndarray:
        """The rows of a chunk."""
        return np.arange(number * CHUNK, min((number + 1) * CHUNK, len(self.features)))

    def missing(self, views: int = 1) -> list[int]:
        """The chunks with rows of which fewer views are written."""
        return list(map(int, np.unique(np.flatnonzero(written_slots(self.marks.array) < views) // CHUNK)))

    def lacking(self, number: int, views: int = 1) -> np.ndarray:
        """The rows of a chunk of which fewer views are written."""
        rows = self.chunk(number)
        return np.asarray(rows[written_slots(self.marks.array[rows]) < views])

    def have_plain(self, rows: np.ndarray) -> bool:
        """Whether the plain views of all these rows are written."""
        return bool((written_slots(self.marks.array[rows]) > 0).all())

    def missing_rows(self, rows: np.ndarray) -> np.ndarray:
        """Those of the rows that lack views."""
        return np.asarray(rows[written_slots(self.marks.array[rows]) < self.features.shape[1]])

    def store(self, rows: np.ndarray, features: np.ndarray) -> None:
        """Write ascending rows; the first slot stands for those that are not given."""
        missing = self.features.shape[1] - features.shape[1]
        self.file.write(rows, np.concatenate([features, np.repeat(features[:, :1], missing, 1)], 1))
        self.marks.write(rows, np.array([mark_of(row) for row in features], np.uint64))

    def store_augmented(self, rows: np.ndarray, augmented: np.ndarray) -> None:
        """Write all views but the plain one of ascending rows."""
        self.store(rows, np.concatenate([self.features[rows, :1], augmented], 1))

    def _verify(self) -> None:
        """Forget what is not as it was written, so that it is embedded again.

        The views of a chunk are drawn together, so that all of it is made again; those of a lazy bank row by row.
        """
        chunks = range(-(-len(self.features) // CHUNK))
        if not self.lazy and (lost := sum(self._lost(self.chunk(number)) for number in chunks)):
            what = f"{lost} rows of the bank {self.folder} have lost their marks and are embedded again"
            warnings.warn(f"{what}, in views that are drawn anew", stacklevel=2)
        damaged = {number: rows for number in chunks if len(rows := self._damaged(self.chunk(number)))}
        for number, rows in damaged.items():
            forgotten = rows if self.lazy else self.chunk(number)
            self.marks.write(forgotten, np.zeros(len(forgotten)))
        if damaged:
            what = f"{sum(map(len, damaged.values()))} rows" if self.lazy else f"{len(damaged)} chunks"
            warnings.warn(f"{what} of the bank {self.folder} were damaged and are embedded again", stacklevel=2)
        if self.lazy:
            for number in chunks:
                self._repeat_plain(self.missing_rows(self.chunk(number)))

    def _damaged(self, rows: np.ndarray) -> np.ndarray:
        marks = self.marks.array[rows]
        written = marks > 0
        return np.asarray(rows[written][~intact(self.features, rows[written], marks[written])])

    def _lost(self, rows: np.ndarray) -> int:
        """How many rows of a chunk have views, but no mark, unlike others of it."""
        unmarked = rows[self.marks.array[rows] == 0]
        return int(self.features[unmarked].any((1, 2)).sum()) if 0 < len(unmarked) < len(rows) else 0

    def _repeat_plain(self, rows: np.ndarray) -> None:
        """Where a process was killed between the views and their mark."""
        x = self.features
        rows = rows[(x[rows, 1:] != x[rows, :1]).any((1, 2))]
        if len(rows):
            self.file.write(rows, np.repeat(x[rows, :1], x.shape[1], 1))


def mark_of(row: np.ndarray) -> int:
    """The mark of a row with these views `(slots, features)`; that of an unwritten row is 0."""
    return len(row) << CHECKSUM_BITS | zlib.crc32(np.ascontiguousarray(row).data)


def written_slots(marks: np.ndarray) -> np.ndarray:
    """How many views of each row are written."""
    return (marks >> np.uint64(CHECKSUM_BITS)).astype(np.int64)


def intact(features: np.ndarray, rows: np.ndarray, marks: np.ndarray) -> np.ndarray:
    """Whether each of the rows is what its mark says."""
    values = features.view(np.ndarray)  # slices of a memory map are slow to make
    slots = written_slots(marks)
    triples = zip(rows, slots, marks, strict=True)
    return np.array([mark_of(values[row, :count]) == mark for row, count, mark in triples], bool)


class ArrayFile:
    """Rows of one type in a .npy file, zeros until they are written. A killed process leaves whole writes only.

    `array` reads the file. Rows are written through the file instead, because pages of a mapping count as memory of
    the process, and a full disk would kill it.
    """

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: type) -> None:
        self.path = path
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            with published(path) as temporary:
                np.lib.format.open_memmap(temporary, mode="w+", dtype=dtype, shape=shape)
                _reserve(temporary, path)
        try:
            self.array: np.memmap = np.lib.format.open_memmap(path, mode="r")
            if self.array.shape != shape or self.array.dtype != dtype or not self.array.flags.c_contiguous:
                raise ValueError("another array")
        except (ValueError, OSError, SyntaxError, TokenError) as fault:
            raise UserError(f"{path} is damaged; remove the folder {path.parent} to make it again") from fault

    def write(self, rows: np.ndarray, values: np.ndarray) -> None:
        """Write ascending rows, and wait until they are on the disk."""
        row_size = self.array.nbytes // len(self.array)
        values = np.ascontiguousarray(values, dtype=self.array.dtype)
        breaks = np.flatnonzero(np.diff(rows) != 1) + 1
        with open(self.path, "r+b") as file:
            for run, piece in zip(np.split(rows, breaks), np.split(values, breaks), strict=True):
                file.seek(int(self.array.offset) + int(run[0]) * row_size)
                file.write(piece.data)
            file.flush()
            os.fsync(file.fileno())


@contextmanager
def published(path: Path) -> Iterator[Path]:
    """A temporary file that appears as `path` when it is complete, unless another process was faster."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        with suppress(FileExistsError):  # the other process's file is as good
            os.link(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _reserve(temporary: Path, path: Path) -> None:
    """Take the space now, so that a full disk is noticed before the work and not after it."""
    size = temporary.stat().st_size
    try:
        if hasattr(os, "posix_fallocate"):
            with open(temporary, "r+b") as file:
                os.posix_fallocate(file.fileno(), 0, size)
    except OSError as fault:
        if fault.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        need = f"{path} needs {size / 1e6:,.0f} MB and the disk is full"
        raise UserError(f"{need}; free some space, use fewer views, or choose another cache folder") from fault
