"""JSON, JSON lines, YAML, arrays and text on disk. A crash leaves the old file or the new one, never half a file."""

from __future__ import annotations

import errno
import io
import json
import math
import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from ..errors import UserError

Columns = dict[str, np.ndarray]
LARGEST_YAML = 10**6  # characters
FORMULA = ("=", "+", "-", "@", "\t", "\r")
# What reading a file of the wrong content can raise: JSON that is nested too deeply, a zip whose header promises
# terabytes, a key that is missing, a number where a list belongs.
MALFORMED = (
    ArithmeticError, AttributeError, EOFError, LookupError, MemoryError, RuntimeError, TypeError, ValueError,
    struct.error, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


def lock_file(handle: int, *, wait: bool = False) -> None:
    """Keep an open file for this process until it is closed, however the process ends; BlockingIOError if it is taken.

    On Windows nothing stops a second process.
    """
    try:
        import fcntl
    except ImportError:
        return
    fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


@contextmanager
def reading(path: str | Path, remedy: str = "restore it from a copy or remove it") -> Iterator[None]:
    """Turn whatever a malformed file raises in this block into one line that names the file and the remedy."""
    try:
        yield
    except UserError:
        raise
    except MALFORMED as fault:
        raise UserError(f"{path} is damaged: {in_words(fault)}; {remedy}") from fault


def in_words(fault: BaseException, limit: int = 200) -> str:
    """An exception on one line: its text, after its kind where the text alone says little."""
    text = " ".join(str(fault).split())
    text = text if len(text) <= limit else f"{text[:limit]}…"
    return text if type(fault) is ValueError and text else f"{type(fault).__name__}{': ' if text else ''}{text}"


def write_atomic(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file beside `path`, flush it to disk, then rename it into place."""
    if not path.name:  # the root or the working directory
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if path.exists() and not path.is_file() and not path.is_dir():  # a device such as /dev/stdout cannot be replaced
        write(path)
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(temporary)
        with open(temporary, "rb") as handle:
            os.fsync(handle.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def encoded(text: str, errors: str = "backslashreplace") -> bytes:
    """Text as UTF-8; by default, bytes of file names that are not UTF-8 become escapes, which JSON reads back."""
    return text.encode("utf-8", errors)


def write_text(path: Path, text: str, errors: str = "backslashreplace") -> None:
    """Write text atomically; see `encoded`."""
    write_atomic(path, lambda temporary: temporary.write_bytes(encoded(text, errors)))


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
    return encoded(json.dumps(nan_to_none(value), indent=2, ensure_ascii=False) + "\n")


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically."""
    write_atomic(path, lambda temporary: temporary.write_bytes(json_bytes(value)))


def read_json(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file; None if there is no such file."""
    return _parse(path.read_bytes(), str(path)) if path.is_file() else None


def read_yaml(path: str | Path, option: str = "") -> dict[str, Any]:
    """The options in a YAML file; `option` precedes the path in an error."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(LARGEST_YAML + 1)
        options = yaml.safe_load(text) if len(text) <= LARGEST_YAML else None
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as fault:
        raise UserError(f"{option}{path} cannot be read: {in_words(fault)}") from fault
    left = [options]
    for _ in range(LARGEST_YAML // 100):  # aliases can make a few lines endless
        if left:
            node = left.pop()
            left += node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    if left or not isinstance(options, dict):
        raise UserError(f"{option}{path} must hold options, one `name: value` per line, and not too many")
    return options


def jsonl_line(value: Any) -> str:
    """One line of a JSONL file."""
    return json.dumps(nan_to_none(value), ensure_ascii=False) + "\n"


def append_jsonl(path: Path, value: Any) -> None:
    """Append one JSON line and flush it to disk."""
    with open(path, "a", encoding="utf-8", errors="backslashreplace") as handle:
        handle.write(jsonl_line(value))
        handle.flush()
        os.fsync(handle.fileno())


class Lines(NamedTuple):
    """The JSON objects of a file, and the numbers of the lines that are damaged."""

    values: list[dict[str, Any]]
    damaged: list[int]

    def complaint(self, path: Path, most: int = 10) -> str:
        """How many lines are left out, and the numbers of the first; empty if none is."""
        if not self.damaged:
            return ""
        shown = ", ".join(map(str, self.damaged[:most])) + (", …" if len(self.damaged) > most else "")
        count = "1 line is" if len(self.damaged) == 1 else f"{len(self.damaged)} lines are"
        return f"{path}: {count} damaged and left out (line {shown})"


def read_jsonl(path: Path) -> Lines:
    """The objects in a file, one per line, each with an integer `step`; none if there is no such file.

    A crash while writing can cut the last line short, and a disk can damage any: such lines are left out and counted.
    """
    lines = Lines([], [])
    for number, line in enumerate(path.read_bytes().split(b"\n") if path.is_file() else [], 1):
        try:
            if line.strip():
                value = _parse(line, str(path))
                if type(value.get("step")) is not int:
                    raise UserError("a line has no step")
                lines.values.append(value)
        except UserError:
            lines.damaged.append(number)
    return lines


def _parse(data: bytes, where: str) -> dict[str, Any]:
    with reading(where):
        value = json.loads(data.decode("utf-8"))
        if not isinstance(value, dict):
            raise ValueError("it does not hold a JSON object")
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
    with reading(path), np.load(path, allow_pickle=False) as stored:
        return {name: stored[name] for name in stored.files}
