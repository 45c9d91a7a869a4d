"""One writer per run folder. The lock belongs to the process: when it ends, however it ends, the lock is free."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import UserError

try:
    import fcntl
except ImportError:  # Windows: there a file that is open cannot be replaced, which protects a run less well
    fcntl = None  # type: ignore[assignment]

NAME = ".lock"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a run folder; a folder in use is refused."""
    handle = _acquire(folder / NAME)
    try:
        yield
    finally:
        (folder / NAME).unlink(missing_ok=True)
        os.close(handle)


def _acquire(path: Path) -> int:
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            if fcntl is not None:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_same(handle, path):
                break
        except BlockingIOError as fault:
            owner = _owner(handle)
            os.close(handle)
            raise UserError(f"{path.parent} is in use{owner}; wait until it ends, or stop it") from fault
        os.close(handle)  # the owner before removed this file meanwhile
    os.ftruncate(handle, 0)
    who = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
    os.write(handle, json.dumps(who).encode())
    return handle


def _is_same(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


def _owner(handle: int) -> str:
    """Who holds the lock, if the file says so by now."""
    try:
        who = json.loads(os.pread(handle, 4096, 0))
        return f" by process {who['pid']} on {who['host']} since {who['since']}"
    except (ValueError, KeyError, TypeError):
        return ""
