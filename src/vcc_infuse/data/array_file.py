"""An array in a file of fixed size that several processes fill and read; memory does not grow with the file."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
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
