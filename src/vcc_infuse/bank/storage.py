"""Features of a bank in files of fixed size that several processes fill and read; memory does not grow with them.

Every chunk of rows has a mark, which says that it is written, and a checksum, which is compared when the files are
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


class StoredViews:
    """Features of the rows of one part, `(rows, slots, features)`, in chunks of 256 rows.

    If `lazy`, a chunk has the plain view only, which stands for the others until these are written row by row.
    """

    def __init__(self, folder: Path, part: str, shape: tuple[int, int, int], lazy: bool = False) -> None:
        self.folder = folder
        self.lazy = lazy
        self.file = ArrayFile(folder / f"{part}.npy", shape, np.float16)
        self.features = self.file.array
        chunks = -(-shape[0] // CHUNK)
        self.done = ArrayFile(folder / f"{part}-done.npy", (chunks,), np.uint8)
        self.sums = ArrayFile(folder / f"{part}-sums.npy", (chunks,), np.uint64)
        if lazy:  # marks of the rows whose views are all written, and their checksums
            self.row_done = ArrayFile(folder / "rows-done.npy", shape[:1], np.uint8)
            self.row_sums = ArrayFile(folder / "rows-sums.npy", shape[:1], np.uint64)
        self._verify()

    def chunk(self, number: int) -> np.ndarray:
        """The rows of a chunk."""
        return np.arange(number * CHUNK, min((number + 1) * CHUNK, len(self.features)))

    def missing(self) -> list[int]:
        """The chunks that are not written yet."""
        return list(map(int, np.flatnonzero(self.done.array == 0)))

    def missing_rows(self, rows: np.ndarray) -> np.ndarray:
        """Those of the rows that have a plain view only."""
        return np.asarray(rows[self.row_done.array[rows] == 0])

    def store(self, number: int, features: np.ndarray) -> None:
        """Write a chunk; the first slot stands for those that are not given."""
        missing = self.features.shape[1] - features.shape[1]
        self.file.write(self.chunk(number), np.concatenate([features, np.repeat(features[:, :1], missing, 1)], 1))
        self.sums.write(np.array([number]), np.array([self._checksum(number)]))
        self.done.write(np.array([number]), np.ones(1))

    def store_rows(self, rows: np.ndarray, augmented: np.ndarray) -> None:
        """Write all views but the plain one of some rows."""
        features = np.concatenate([self.features[rows, :1], augmented], 1)
        self.file.write(rows, features)
        self.row_sums.write(rows, np.array([_checksum(row) for row in features]))
        self.row_done.write(rows, np.ones(len(rows)))

    def _checksum(self, number: int) -> int:
        features = self.features[self.chunk(number)]
        return _checksum(features[:, :1] if self.lazy else features)

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
        """The same for rows. A row whose views are not written repeats its plain view."""
        x = self.features
        marked = np.flatnonzero(self.row_done.array)
        bad = [row for row in marked if int(self.row_sums.array[row]) != _checksum(x[row])]
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


def _checksum(features: np.ndarray) -> int:
    """CRC-32 of the values, plus 1, because an unwritten checksum is 0."""
    return zlib.crc32(np.ascontiguousarray(features).data) + 1


class ArrayFile:
    """Rows of one type in a .npy file, zeros until they are written. A killed process leaves whole writes only.

    `array` reads the file. Rows are written through the file instead, because pages of a mapping count as memory of
    the process, and a full disk would kill it.
    """

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: type) -> None:
        self.path = path
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            with _published(path) as temporary:
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


def write_once(path: Path, text: str) -> None:
    """Write a text file unless another process was faster."""
    with _published(path) as temporary:
        temporary.write_text(text)


@contextmanager
def _published(path: Path) -> Iterator[Path]:
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
