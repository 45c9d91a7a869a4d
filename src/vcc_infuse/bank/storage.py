"""An array in a file of fixed size that several processes fill and read; memory does not grow with the file."""

from __future__ import annotations

import errno
import os
import warnings
import zlib
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from tokenize import TokenError

import numpy as np

from ..errors import UserError


class ArrayFile:
    """Rows of one type in a .npy file, zeros until they are written. A killed process leaves whole writes only.

    `array` reads the file. Rows are written through the file instead, because pages of a mapping count as memory of
    the process, and a full disk would end it.

    Args:
        path: the file; it is created if it does not exist.
        shape: the shape of the array.
        dtype: the type of its values.
    """

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: type) -> None:
        self.path = path
        if not path.is_file():
            _create(path, shape, dtype)
        try:
            self.array: np.memmap = np.lib.format.open_memmap(path, mode="r")
        except (ValueError, OSError, SyntaxError, TokenError) as fault:
            raise _damaged(path) from fault
        if self.array.shape != shape or self.array.dtype != dtype or not self.array.flags.c_contiguous:
            raise _damaged(path)

    def write(self, rows: np.ndarray, values: np.ndarray) -> None:
        """Write ascending rows, and wait until they are on the disk."""
        start, size = int(self.array.offset), self.array.nbytes // len(self.array)
        values = np.ascontiguousarray(values, dtype=self.array.dtype)
        breaks = np.flatnonzero(np.diff(rows) != 1) + 1
        with open(self.path, "r+b") as file:
            for ids, piece in zip(np.split(rows, breaks), np.split(values, breaks), strict=True):
                file.seek(start + int(ids[0]) * size)
                file.write(piece.data)
            file.flush()
            os.fsync(file.fileno())


def write_once(path: Path, text: str) -> None:
    """Write a text file unless another process was faster."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text)
        _appear(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _appear(temporary: Path, path: Path) -> None:
    with suppress(FileExistsError):  # another process was faster, and its file is as good
        os.link(temporary, path)


def _create(path: Path, shape: tuple[int, ...], dtype: type) -> None:
    """A file of full size, which appears only when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        np.lib.format.open_memmap(temporary, mode="w+", dtype=dtype, shape=shape)
        _reserve(temporary, path)
        _appear(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _reserve(file: Path, path: Path) -> None:
    """Take the space now, so that a full disk is noticed before the work and not after it."""
    size = file.stat().st_size
    try:
        if hasattr(os, "posix_fallocate"):
            with open(file, "r+b") as handle:
                os.posix_fallocate(handle.fileno(), 0, size)
    except OSError as fault:
        if fault.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        need = f"{path} needs {size / 1e6:,.0f} MB and the disk is full"
        raise UserError(f"{need}; free some space, use fewer views, or choose another cache folder") from fault


def _damaged(path: Path) -> UserError:
    return UserError(f"{path} is damaged; remove the folder {path.parent} to make it again")


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
