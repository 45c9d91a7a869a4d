"""JSON, JSON lines, arrays and text on disk. A crash leaves the old file or the new one, never half a file."""

from __future__ import annotations

import io
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

Columns = dict[str, np.ndarray]
FORMULA = ("=", "+", "-", "@", "\t", "\r")


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


def write_text(path: Path, text: str, errors: str = "strict") -> None:
    """Write text atomically; `errors` is for characters that UTF-8 cannot encode, as in `str.encode`."""
    write_atomic(path, lambda temporary: temporary.write_bytes(text.encode("utf-8", errors)))


def table_cell(text: str) -> str:
    """Text for a cell of a CSV or TSV file. Spreadsheets run what begins with = + - @, so it gets a leading apostrophe.

    >>> table_cell("=1+1"), table_cell("cat")
    ("'=1+1", 'cat')
    """
    return f"'{text}" if text.lstrip("'").startswith(FORMULA) else text


def nan_to_none(value: Any) -> Any:
    """JSON has no NaN: NaN and infinity become null, also inside nested lists and dicts."""
    if isinstance(value, dict):
        return {key: nan_to_none(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [nan_to_none(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def json_bytes(value: Any) -> bytes:
    """The content of a JSON file."""
    return (json.dumps(nan_to_none(value), indent=2, ensure_ascii=False) + "\n").encode()


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically."""
    write_atomic(path, lambda temporary: temporary.write_bytes(json_bytes(value)))


def read_json(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file; None if there is no such file."""
    return _parse(path.read_bytes(), str(path)) if path.is_file() else None


def jsonl_line(value: Any) -> str:
    """One line of a JSONL file."""
    return json.dumps(nan_to_none(value), ensure_ascii=False) + "\n"


def append_jsonl(path: Path, value: Any) -> None:
    """Append one JSON line and flush it to disk."""
    with open(path, "a", encoding="utf-8") as handle:
        handle.write(jsonl_line(value))
        handle.flush()
        os.fsync(handle.fileno())


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The JSON objects in a file, one per line; none if there is no such file.

    A crash while writing can cut the last line short. Such a line is left out; any other damage is an error.
    """
    if not path.is_file():
        return []
    *lines, last = path.read_bytes().split(b"\n")
    found = [_parse(line, f"{path}, line {number},") for number, line in enumerate(lines, 1) if line.strip()]
    try:
        return [*found, _parse(last, str(path))]
    except UserError:
        return found


def _parse(data: bytes, where: str) -> dict[str, Any]:
    try:
        value = json.loads(data.decode("utf-8"))
    except ValueError as fault:
        raise UserError(f"{where} is damaged: {fault}; restore it from a copy or remove it") from fault
    if not isinstance(value, dict):
        raise UserError(f"{where} is damaged: it does not hold a JSON object; restore it from a copy or remove it")
    return value


def npz_bytes(columns: Mapping[str, np.ndarray]) -> bytes:
    """Arrays of any names as the content of one compressed file."""
    content = io.BytesIO()
    np.savez_compressed(content, **columns)  # type: ignore[arg-type]
    return content.getvalue()


def save_npz(path: Path, columns: Mapping[str, np.ndarray]) -> None:
    """Write arrays of any names to one compressed file, atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, lambda temporary: temporary.write_bytes(npz_bytes(columns)))


def load_npz(path: Path) -> Columns | None:
    """The arrays of a file by name; None if there is no such file."""
    if not path.is_file():
        return None
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except (ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as fault:
        raise UserError(f"{path} is damaged: {fault}; restore it from a copy or remove it") from fault
