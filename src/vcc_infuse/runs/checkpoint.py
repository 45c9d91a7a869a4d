"""Checkpoints: written atomically and verified by checksum when read; the last two are kept."""

from __future__ import annotations

import hashlib
import io
import pickle
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import torch

from ..errors import UserError
from ..utils.io import in_words, read_json, reading, write_atomic, write_json
from .fingerprint import Fingerprint


def save(folder: Path, step: int, state: dict[str, Any], fingerprint: Fingerprint | None = None, keep: int = 2) -> Path:
    """Write `state` (tensors in plain containers) as the checkpoint of `step`; delete all but the newest `keep`.

    The fingerprint is stored with the checksum, where it can be read without the state.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step-{step:09d}.pt"
    # Through memory, because torch's own writer does not raise OSError when the disk is full.
    content = io.BytesIO()
    torch.save(state, content)
    write_atomic(path, lambda temporary: temporary.write_bytes(content.getbuffer()))
    # The checksum is written last: a checkpoint without one was cut short and does not count.
    write_json(path.with_suffix(".json"), {"step": step, "sha256": digest(path), "fingerprint": fingerprint})
    for old in sorted(folder.glob("step-*.pt"))[:-keep]:
        old.unlink()
        old.with_suffix(".json").unlink(missing_ok=True)
    return path


def load(folder: Path, device: torch.device | str = "cpu") -> dict[str, Any] | None:
    """The newest undamaged checkpoint, or None."""
    # Several processes call their CPUs cpu:0, cpu:1, …, which torch.load does not know.
    where = "cpu" if torch.device(device).type == "cpu" else device
    for path in undamaged(folder):
        try:
            return cast(dict[str, Any], torch.load(path, map_location=where, weights_only=True))
        except (pickle.UnpicklingError, RuntimeError, EOFError, KeyError) as foreign:
            _warn(path, f"it was not written by this library: {in_words(foreign, 80)}")
    return None


def read_fingerprint(folder: Path) -> Fingerprint | None:
    """The run that the newest undamaged checkpoint belongs to, with the step of the checkpoint; None without one."""
    path = next(undamaged(folder), None)
    if path is None:
        return None
    with reading(folder, "restore them from a copy, or start again with a new --out"):
        record = read_json(path.with_suffix(".json")) or {}
        fingerprint: Fingerprint | None = record["fingerprint"]
        return {**fingerprint, "step": record["step"]} if fingerprint else None


def undamaged(folder: Path) -> Iterator[Path]:
    """The undamaged checkpoints, the newest first; a damaged one causes a warning."""
    for path in sorted(folder.glob("step-*.pt"), reverse=True):
        if fault := corruption_reason(path):
            _warn(path, fault)
        else:
            yield path


def _warn(path: Path, fault: str) -> None:
    warnings.warn(f"checkpoint {path} is damaged ({fault}); trying the previous one", stacklevel=3)


def corruption_reason(path: Path) -> str | None:
    """Why a checkpoint cannot be trusted, or None."""
    if re.fullmatch(r"step-(\d+)\.pt", path.name) is None:
        return "its name is not step-<number>.pt"
    try:
        expected = read_json(path.with_suffix(".json"))
    except UserError:
        return "its checksum file cannot be read"
    if expected is None:
        return "it has no checksum"
    return None if digest(path) == expected.get("sha256") else "its checksum differs"


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
