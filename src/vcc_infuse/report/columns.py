"""Named columns of numbers and names as one .npz file: written whole or not at all, read without unpickling."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ..errors import UserError
from ..files import write_atomic

Columns = dict[str, np.ndarray]


def save_columns(path: Path, columns: Mapping[str, np.ndarray]) -> None:
    """Write the columns."""

    def write(temporary: Path) -> None:
        with open(temporary, "wb") as handle:  # a handle, because numpy adds .npz to a name
            np.savez_compressed(handle, **columns)  # type: ignore[arg-type]

    write_atomic(path, write)


def load_columns(path: Path) -> Columns | None:
    """Read them back; None where there is no such file."""
    if not path.is_file():
        return None
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as fault:
        raise UserError(f"{path} is damaged ({fault}); remove it, and the report leaves that part out") from fault
