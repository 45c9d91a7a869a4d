"""Writing files so that a crash leaves the old one or the new one, never half of one."""

from __future__ import annotations

import json
import math
import os
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UserError


def write_atomic(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file beside `path`, flush it to disk, then rename it into place."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(temporary)
        with open(temporary, "rb") as handle:
            os.fsync(handle.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def nan_to_none(value: Any) -> Any:
    """JSON has no NaN: unknown numbers become null, all through nested lists and dicts."""
    if isinstance(value, dict):
        return {key: nan_to_none(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [nan_to_none(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically."""
    text = json.dumps(nan_to_none(value), indent=2, ensure_ascii=False) + "\n"
    write_atomic(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def append_jsonl(path: Path, value: Any) -> None:
    """Append one JSON line and flush it to disk."""
    with open(path, "a", encoding="utf-8") as handle:
        handle.write(json.dumps(nan_to_none(value), ensure_ascii=False) + "\n")
        handle.flush()
        os.fsync(handle.fileno())


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The JSON lines of a file; a last line torn by a crash is left out."""
    lines: list[dict[str, Any]] = []
    if not path.exists():
        return lines
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            break
    return lines


Columns = dict[str, np.ndarray]


def save_npz(path: Path, columns: Mapping[str, np.ndarray]) -> None:
    """Write the columns."""

    def write(temporary: Path) -> None:
        with open(temporary, "wb") as handle:  # a handle, because numpy adds .npz to a name
            np.savez_compressed(handle, **columns)  # type: ignore[arg-type]

    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, write)


def load_npz(path: Path) -> Columns | None:
    """Read them back; None where there is no such file."""
    if not path.is_file():
        return None
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as fault:
        raise UserError(f"{path} is damaged ({fault}); remove it, and the report leaves that part out") from fault
