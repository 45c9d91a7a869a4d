"""RunFolder: the files of one run, written by one process at a time."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..errors import OptionError, UserError
from ..utils import manifest
from ..utils.io import Columns, encoded, json_bytes, jsonl_line, load_npz, lock_file, npz_bytes, read_jsonl
from . import checkpoint
from .fingerprint import Fingerprint

LOCK = ".lock"
LOGS = ("metrics.jsonl", "selections.jsonl")
PACKAGES = ("vcc-infuse", "torch", "torchvision", "accelerate", "numpy", "scikit-learn")


class RunFolder:
    """The files of one run, in a folder that need not exist. Nothing is created before `create`."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.metrics = self.path / "metrics.jsonl"
        self.selections = self.path / "selections.jsonl"
        self.checkpoints = self.path / "checkpoints"

    def check_free(self) -> None:
        """Refuse a folder that already holds files: results are never overwritten."""
        problem = "it is a file" if self.path.is_file() else ""
        # Hidden files are the lock, or what a killed process left before there was anything to keep.
        if self.path.is_dir() and any(not file.name.startswith(".") for file in self.path.iterdir()):
            problem = "it already holds files: use another folder, or resume this run"
        if problem:
            raise OptionError("out", str(self.path), "must be a new or empty folder", problem)

    def _make(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as fault:
            reason = f"it cannot be created: {fault.strerror}"
            raise OptionError("out", str(self.path), "must be in a writable folder", reason) from fault

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Reserve the folder for this process, or refuse one in use.

        The system releases the lock however the process ends. A folder created here is removed again if it stays empty.
        """
        is_new = not self.path.exists()
        self._make()
        handle = _acquire(self.path / LOCK)
        try:
            yield
        finally:
            (self.path / LOCK).unlink(missing_ok=True)
            os.close(handle)
            if is_new:
                with suppress(OSError):  # it holds files
                    self.path.rmdir()

    def create(self, config: str, rows: Columns | None = None, skipped: str = "") -> None:
        """Write config.yaml, rows.npz (see `runs.fingerprint.used_rows`) and skipped.tsv, as far as they are given."""
        self._make()
        files = {"config.yaml": encoded(config)} | ({"rows.npz": npz_bytes(rows)} if rows else {})
        manifest.publish(self.path, files | ({"skipped.tsv": encoded(skipped)} if skipped else {}))

    def keep_model(self, files: dict[str, bytes], rows: Columns) -> None:
        """Write a model before the run is finished, with the rows that it knows."""
        manifest.publish(self.path, {**files, "rows.npz": npz_bytes(rows)})

    def remove_unstarted(self) -> None:
        """Remove the folder of a run that failed before its first step and holds nothing but its configuration."""
        visible = {file.name for file in self.path.iterdir() if not file.name.startswith(".")}
        if visible <= {"config.yaml", manifest.NAME}:
            shutil.rmtree(self.path)

    def reopen(self, config: str) -> None:
        """Mark a finished run as unfinished, because it gets more steps."""
        summary = self.path / "summary.json"
        if summary.exists():
            summary.unlink()  # first: an interruption leaves a run that can be continued
            manifest.publish(self.path, {"config.yaml": encoded(config)}, LOGS, dropped=["summary.json"])

    def check_logs(self, force: bool = False) -> None:
        """Refuse logs that were changed since they were written; `force` keeps the lines that can be read."""
        try:
            manifest.check(self.path, LOGS, required=False)
        except UserError as fault:
            if not force:
                raise UserError(f"{fault}, or continue with what is left of it with --force") from fault
            kept = {name: _until(self.path / name, sys.maxsize) for name in LOGS if (self.path / name).is_file()}
            manifest.publish(self.path, kept, LOGS)

    def keep_config(self) -> None:
        """Record the checksum of config.yaml as it is, after it was compared with the run's own options."""
        manifest.publish(self.path, {"config.yaml": (self.path / "config.yaml").read_bytes()})

    def rows(self) -> Columns | None:
        """Which rows the run is trained and measured on; see `runs.fingerprint.used_rows`."""
        manifest.check(self.path, ["rows.npz"], required=False)
        return load_npz(self.path / "rows.npz")

    def has_checkpoint(self) -> bool:
        """Whether there is a checkpoint to continue from."""
        return any(self.checkpoints.glob("step-*.pt"))

    def rewind(self, step: int) -> None:
        """Drop the lines written after the checkpoint of `step`, because the resumed run writes them again.

        An evaluation is recorded after its step, a core set before the step it is for.
        """
        ends = {self.metrics: step, self.selections: step - 1}
        kept = {path.name: _until(path, last) for path, last in ends.items() if path.exists()}
        if kept:
            manifest.publish(self.path, kept, LOGS)

    def save_checkpoint(self, step: int, state: dict[str, Any], fingerprint: Fingerprint | None = None) -> None:
        """Save the state after `step` steps, and record the checksums of the logs."""
        manifest.publish(self.path, {}, LOGS)
        checkpoint.save(self.checkpoints, step, state, fingerprint)

    def finish(self, summary: dict[str, Any], files: dict[str, bytes]) -> None:
        """Write the summary and other files, all at once; a run with a summary.json is finished."""
        manifest.publish(self.path, {**files, "summary.json": json_bytes(summary)}, LOGS)


def _acquire(path: Path) -> int:
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            lock_file(handle)
            if os.path.samestat(os.fstat(handle), os.stat(path)):
                break
        except FileNotFoundError:
            pass
        except BlockingIOError as fault:
            owner = _owner(handle)
            os.close(handle)
            raise UserError(f"{path.parent} is in use{owner}; wait until it ends, or stop it") from fault
        os.close(handle)  # the previous owner has removed this file meanwhile
    os.ftruncate(handle, 0)
    who = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
    os.write(handle, json.dumps(who).encode())
    return handle


def _owner(handle: int) -> str:
    """Who holds the lock, if it has written that by now."""
    try:
        who = json.loads(os.pread(handle, 4096, 0))
        return f" by process {who['pid']} on {who['host']} since {who['since']}"
    except (ValueError, KeyError, TypeError):
        return ""


def _until(path: Path, step: int) -> bytes:
    """The lines up to a step, without those that are damaged."""
    return encoded("".join(jsonl_line(line) for line in read_jsonl(path).values if line["step"] <= step))


def versions() -> dict[str, str]:
    """The versions of everything that the metrics depend on."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found
