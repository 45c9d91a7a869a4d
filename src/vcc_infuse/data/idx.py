"""The IDX format of MNIST and its successors: magic number, dimensions, then the bytes; plain or gzipped."""

import gzip
import zlib
from pathlib import Path

import numpy as np

from ..errors import UserError


def read_idx(path: str | Path) -> np.ndarray:
    """The uint8 array stored in an IDX file."""
    raw = _bytes(Path(path))
    if len(raw) < 4 or raw[:3] != b"\0\0\x08":
        raise UserError(f"{path}: not an IDX file of bytes: it starts with {raw[:4].hex()}, not 000008")
    start = 4 + 4 * raw[3]
    shape = tuple(np.frombuffer(raw[4:start], ">u4").astype(int).tolist()) if len(raw) >= start else ()
    expected = start + int(np.prod(shape, dtype=object))
    if len(shape) != raw[3] or len(raw) != expected:
        raise UserError(f"{path}: damaged IDX file ({len(raw)} bytes instead of {expected}); fetch it again")
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)


def _bytes(path: Path) -> bytes:
    raw = path.read_bytes()
    if raw[:2] != b"\x1f\x8b":
        return raw
    try:
        return gzip.decompress(raw)
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: damaged gzip file ({error}); fetch it again") from error
