"""The journal of a labeling session: one JSON line per action, on disk before the action is answered.

Every line has a number and ends with a checksum, because a digit that has become another one is still JSON.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from ..errors import UserError
from ..utils.io import in_words, lock_file

FORMAT = 1
CHECK = re.compile(rb'(.*),"check":"([0-9a-f]{8})"\}', re.DOTALL)


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
            lock_file(self._handle)
            self.records, self.note = self._read()
        except BlockingIOError as fault:
            os.close(self._handle)
            raise UserError(f"{path.parent} is in use by another server; close it, or give another --out") from fault
        except BaseException:
            os.close(self._handle)
            raise

    def _read(self) -> tuple[list[dict[str, Any]], str]:
        """All complete lines; what a killed process left of the last one is cut off."""
        content = self.path.read_bytes()
        end = content.rfind(b"\n") + 1
        note = f"the last line of {self.path.name} was cut short and is left out" if end < len(content) else ""
        os.ftruncate(self._handle, end)
        self._end = end
        lines = [self._parse(line, number) for number, line in enumerate(content[:end].split(b"\n")[:-1], 1)]
        self._next = lines[-1]["line"] + 1 if lines else 0
        if not lines:
            self._begin()
        elif lines[0].get("format") != FORMAT:
            raise UserError(f"{self.path} is no journal of this version; give another --out")
        elif missing := self._next - len(lines):
            note = f"{missing} lines of {self.path.name} are missing; what they said is left out"
        return lines[1:], note

    def _begin(self) -> None:
        """Write the first line, but not where labels of another session would be overwritten."""
        labels = self.path.with_name("labels.csv")
        if labels.exists():
            remedy = f"restore it, or give another --out and --label_file {labels}"
            raise UserError(f"{labels.parent} has labels.csv, but its {self.path.name} is empty or gone; {remedy}")
        self.append({"format": FORMAT})

    def _parse(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            parts = CHECK.fullmatch(line)
            if parts is None or zlib.crc32(parts[1]) != int(parts[2], 16):
                raise ValueError("its checksum is another one")
            record: dict[str, Any] = json.loads(parts[1] + b"}")
        except (ValueError, RecursionError) as fault:
            remedy = "remove the line, which leaves out what it says, or give another --out"
            raise UserError(f"{self.path}, line {number} is damaged ({in_words(fault)}); {remedy}") from fault
        return record

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one line to disk; if that fails (a full disk), the file is as it was before."""
        content = json.dumps({"line": self._next, **record}, separators=(",", ":")).encode()[:-1]
        line = content + b',"check":"%08x"}\n' % zlib.crc32(content)
        try:
            written = 0
            while written < len(line):
                written += os.pwrite(self._handle, line[written:], self._end + written)
            os.fsync(self._handle)
        except OSError:
            os.ftruncate(self._handle, self._end)
            raise
        self._end += len(line)
        self._next += 1

    def close(self) -> None:
        """Release the lock."""
        os.close(self._handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
