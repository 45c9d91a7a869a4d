"""Checkpoints: written atomically, verified by checksum when read; the last two are kept."""

from __future__ import annotations

import hashlib
import io
import pickle
import re
import warnings
from pathlib import Path
from typing import Any

import torch

from ..errors import UserError
from ..utils.io import in_words, read_json, write_atomic, write_json

NAME = re.compile(r"step-(\d+)\.pt")


def save(folder: Path, step: int, state: dict[str, Any], keep: int = 2) -> Path:
    """Write `state` (tensors in plain containers) as the checkpoint of `step`; drop all but the newest `keep`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step-{step:09d}.pt"
    # Through memory, because torch's own writer does not raise OSError when the disk is full.
    content = io.BytesIO()
    torch.save(state, content)
    write_atomic(path, lambda temporary: temporary.write_bytes(content.getbuffer()))
    # The checksum is written last: a checkpoint without one was cut short and does not count.
    write_json(path.with_suffix(".json"), {"step": step, "sha256": digest(path)})
    for old in sorted(folder.glob("step-*.pt"))[:-keep]:
        old.unlink()
        old.with_suffix(".json").unlink(missing_ok=True)
    return path


def load(folder: Path, device: torch.device | str = "cpu") -> dict[str, Any] | None:
    """The newest undamaged checkpoint, or None; a damaged one causes a warning, and the previous one is tried."""
    for path in sorted(folder.glob("step-*.pt"), reverse=True):
        fault = corruption_reason(path)
        if fault is None:
            try:
                state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
                return state
            except (pickle.UnpicklingError, RuntimeError, EOFError, KeyError) as foreign:
                fault = f"it is not one of ours: {in_words(foreign, 80)}"
        warnings.warn(f"checkpoint {path} is damaged ({fault}); trying the previous one", stacklevel=2)
    return None


def corruption_reason(path: Path) -> str | None:
    """Why a checkpoint cannot be trusted, or None."""
    record = path.with_suffix(".json")
    if NAME.fullmatch(path.name) is None:
        return "its name is not step-<number>.pt"
    try:
        expected = read_json(record)
    except UserError:
        return "its checksum file cannot be read"
    if expected is None:
        return "it has no checksum"
    return None if digest(path) == expected.get("sha256") else "its checksum differs"


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
