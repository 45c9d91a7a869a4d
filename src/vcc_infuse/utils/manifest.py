"""manifest.json: the checksums of a folder's files, by which a set of files changes at once.

The new files are written under temporary names; replacing the manifest commits them; then they are renamed, by this
process or, if it is killed, by the next one that opens the folder. A reader sees the old set or the new one, and an
error names any file that is not as it was written.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..errors import UserError
from .io import write_json

NAME = "manifest.json"
Content = bytes | memoryview
Entry = dict[str, Any]
Names = Iterable[str]
RESTORE = "restore it from a copy"


def publish(
    folder: Path, files: Mapping[str, Content], logs: Names = (), *, existing: Names = (), dropped: Names = ()
) -> None:
    """Write the new content of `files` as one set and record their checksums.

    `logs` only grow: what they hold now is recorded. `existing` files are recorded as they are, `dropped` ones no more.
    """
    settle(folder)
    entries = {name: entry for name, entry in (_entries(folder) or {}).items() if name not in dropped}
    entries |= {name: _stage(folder / f".{name}.new", content) for name, content in files.items()}
    entries |= {name: describe(folder / name) for name in existing}
    for name in logs:
        before = entries.pop(name, None)
        if name in files or (folder / name).is_file():
            entry = before if name in files and before else describe(folder / name)
            entries[name] = {**entry, "grows": True}
    write_json(folder / NAME, {"files": entries, "sha256": _seal(entries)})
    settle(folder)
    for leftover in folder.glob(".*.new"):  # of a process that was killed before its set counted
        leftover.unlink(missing_ok=True)


def describe(path: Path) -> Entry:
    """The length and the checksum of a file."""
    size = path.stat().st_size
    return {"bytes": size, "sha256": _digest(path, size)}


def settle(folder: Path) -> None:
    """Rename the files of the newest set, in case a process was killed before it could."""
    entries = None
    for staged in folder.glob(".*.new"):
        entries = (_entries(folder) or {}) if entries is None else entries
        name = staged.name[1 : -len(".new")]
        with suppress(FileNotFoundError):  # another process was faster
            if name in entries and _fault(staged, entries[name]) is None:
                os.replace(staged, folder / name)


def check(folder: Path, names: Names, *, required: bool = True) -> None:
    """Refuse files that are not as they were written, and, if `required`, a folder without a manifest.

    Files that the manifest does not list pass, unless they are links.
    """
    settle(folder)
    entries = _entries(folder)
    names = list(names)
    if entries is None and required:
        raise UserError(f"{folder}/{NAME} is missing, so nothing shows whether the files are whole; {RESTORE}")
    check_links(folder, names)
    for name in names:
        fault = _fault(folder / name, entries[name]) if entries and name in entries else None
        if fault is not None:
            raise UserError(f"{folder / name} {fault}; {RESTORE}")


def check_links(folder: Path, names: Names) -> None:
    """Refuse links, which could show a file from anywhere, unless the manifest knows what they lead to."""
    for path in (folder / name for name in names if (folder / name).is_symlink()):
        entry = (_entries(folder) or {}).get(path.name)
        if entry is None or _fault(path, entry) is not None:
            raise UserError(f"{path} is a link to what {NAME} does not know; put the file itself in its place")


def listed(folder: Path) -> set[str]:
    """The names of the files in the manifest."""
    return set(_entries(folder) or ())


def _stage(path: Path, content: Content) -> Entry:
    with open(path, "wb") as handle:
        handle.write(content)
        handle.flush()
        os.fsync(handle.fileno())
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _fault(path: Path, entry: Entry) -> str | None:
    """How a file differs from what was written."""
    if not path.is_file():
        return "is missing"
    size = path.stat().st_size
    expected = entry["bytes"]
    if size < expected or (size > expected and not entry.get("grows")):
        return f"is damaged or was changed: it has {size:,} bytes instead of {expected:,}"
    return None if _digest(path, expected) == entry["sha256"] else "is damaged or was changed: its checksum differs"


def _digest(path: Path, length: int) -> str:
    """The checksum of the first bytes of a file: a log may have grown since."""
    digest = hashlib.sha256()
    with open(path, "rb") as handle:
        while block := handle.read(min(2**20, length)):
            digest.update(block)
            length -= len(block)
    return digest.hexdigest()


def _entries(folder: Path) -> dict[str, Entry] | None:
    """What the manifest says; None without one."""
    path = folder / NAME
    try:
        content = json.loads(path.read_bytes())
        entries: dict[str, Entry] = content["files"]
        whole = content["sha256"] == _seal(entries)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, RecursionError):
        whole = False
    if not whole:
        raise UserError(f"{path} is damaged; {RESTORE}")
    return entries


def _seal(entries: dict[str, Entry]) -> str:
    return hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()
