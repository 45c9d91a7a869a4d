"""The journal of a labeling session: one JSON line per action, on disk before the action is answered."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from ..errors import UserError
from ..utils.io import in_words

try:
    import fcntl
except ImportError:  # Windows: two servers on one folder are not told apart there
    fcntl = None  # type: ignore[assignment]

FORMAT = 1


class Journal:
    """An append-only file of JSON objects that one process writes at a time.

    Attributes:
        records: what the file held when it was opened, without its first line.
        note: what was wrong with the file, or empty.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            self._lock()
            self.records, self.note = self._read()
        except BaseException:
            os.close(self._handle)
            raise

    def _lock(self) -> None:
        """The system releases the lock however the process ends."""
        try:
            if fcntl is not None:
                fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as fault:
            raise UserError(
                f"{self.path.parent} is in use by another server; close it, or give another --out"
            ) from fault

    def _read(self) -> tuple[list[dict[str, Any]], str]:
        """All complete lines; what a killed process left of the last one is cut off."""
        content = self.path.read_bytes()
        end = content.rfind(b"\n") + 1
        note = f"the last line of {self.path.name} was cut short and is left out" if end < len(content) else ""
        os.ftruncate(self._handle, end)
        self._end = end
        lines = [self._parse(line, number) for number, line in enumerate(content[:end].split(b"\n")[:-1], 1)]
        if not lines:
            self.append({"format": FORMAT})
        elif lines[0].get("format") != FORMAT:
            raise UserError(f"{self.path} is no journal of this version; give another --out")
        return lines[1:], note

    def _parse(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            record = json.loads(line)
            if not isinstance(record, dict):
                raise ValueError("it is no JSON object")
        except (ValueError, RecursionError) as fault:
            remedy = "correct or remove the line, or give another --out"
            raise UserError(f"{self.path}, line {number} is damaged ({in_words(fault)}); {remedy}") from fault
        return record

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one line to disk; if that fails (a full disk), the file is as it was before."""
        line = json.dumps(record, separators=(",", ":")).encode() + b"\n"
        try:
            written = 0
            while written < len(line):
                written += os.pwrite(self._handle, line[written:], self._end + written)
            os.fsync(self._handle)
        except OSError:
            os.ftruncate(self._handle, self._end)
            raise
        self._end += len(line)

    def close(self) -> None:
        """Release the lock."""
        os.close(self._handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
