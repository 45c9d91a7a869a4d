"""Earlier banks: what one of the same recipe has embedded is copied, and banks that nobody opens are removed."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from tokenize import TokenError
from typing import NamedTuple

import numpy as np

from . import storage
from .storage import StoredViews, intact, written_slots

PARTS = ("train", "test")
DAY = 86400.0  # seconds


class EarlierViews(NamedTuple):
    """One part of another bank, as it is on the disk."""

    features: np.ndarray
    marks: np.ndarray
    digests: np.ndarray


def take_over(folder: Path, parts: Sequence[StoredViews]) -> int:
    """Copy what the bank in `folder` lacks and others of its recipe have; returns of how many images.

    A process that is killed meanwhile has marked what it has copied. Others may copy the same at the same time.
    """
    before = sum(_unwritten(stored) for stored in parts)
    for earlier in sorted(folder.parent.iterdir()) if _lacking(parts) else ():
        sources = [_read(earlier, name) for name in PARTS] if earlier != folder else []
        for source in filter(None, sources):
            for stored in parts:
                _copy(source, stored)
        if not _lacking(parts):
            break
    return before - sum(_unwritten(stored) for stored in parts)


def _unwritten(stored: StoredViews) -> int:
    return int((stored.marks.array == 0).sum())


def _lacking(parts: Sequence[StoredViews]) -> bool:
    return any(len(stored.missing_rows(np.arange(len(stored.features)))) for stored in parts)


def _read(folder: Path, part: str) -> EarlierViews | None:
    """None for files that are not there, or damaged."""
    paths = [folder / f"{part}{suffix}.npy" for suffix in ("", "-marks", "-digests")]
    try:
        views = EarlierViews(*(np.load(path, mmap_mode="r", allow_pickle=False) for path in paths))
    except (ValueError, OSError, EOFError, SyntaxError, TokenError):
        return None
    rows = len(views.marks)
    whole = views.features.shape[:1] == (rows,) and views.digests.shape == (rows, 2) and views.features.ndim == 3
    types = [array.dtype.name for array in views]
    return views if whole and types == ["float16", "uint64", "uint64"] else None


def _copy(source: EarlierViews, target: StoredViews) -> None:
    """Copy rows of which the source has more views than the target, a block at a time."""
    slots = target.features.shape[1]
    if source.features.shape[2] != target.features.shape[2]:
        return
    offered = np.minimum(written_slots(source.marks), slots)
    if not target.lazy:
        offered[offered < slots] = 0  # such as a test image, which has a plain view only
    wanted = target.missing_rows(np.arange(len(target.features)))
    known = np.flatnonzero(offered)
    ours, theirs = _matches(target.digests.array[wanted], source.digests[known])
    rows = wanted[ours]
    origins = known[theirs]
    for count in np.unique(offered[origins]):
        better = (offered[origins] == count) & (written_slots(target.marks.array[rows]) < count)
        for start in range(0, int(better.sum()), storage.CHUNK):
            block = slice(start, start + storage.CHUNK)
            _copy_block(source, target, origins[better][block], rows[better][block], int(count))


def _copy_block(source: EarlierViews, target: StoredViews, origins: np.ndarray, rows: np.ndarray, count: int) -> None:
    sound = intact(source.features, origins, source.marks[origins])
    if sound.any():
        target.store(rows[sound], np.asarray(source.features[origins[sound], :count]))


def _matches(wanted: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Places of equal digests `(rows, 2)` in both; an image that occurs several times is found in turn."""
    order = np.argsort(known[:, 0], kind="stable")
    keys = known[order, 0]
    first = np.searchsorted(keys, wanted[:, 0])
    count = np.searchsorted(keys, wanted[:, 0], "right") - first
    there = np.flatnonzero(count)
    places = order[first[there] + _occurrence(wanted[:, 0])[there] % count[there]]
    same = (wanted[there] == known[places]).all(1)
    return there[same], places[same]


def _occurrence(values: np.ndarray) -> np.ndarray:
    """How often each value has occurred before."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    occurrence = np.empty(len(values), np.int64)
    occurrence[order] = np.arange(len(values)) - np.searchsorted(ordered, ordered)
    return occurrence


class BankFolder(NamedTuple):
    """A bank on the disk."""

    path: Path
    megabytes: float
    days: float  # since it was last opened


def list_banks(cache: Path) -> list[BankFolder]:
    """All banks of a cache folder."""
    now = time.time()
    banks = []
    for path in sorted((cache / "banks").glob("*/*/")):
        size = sum(file.stat().st_size for file in path.iterdir() if file.is_file())
        banks.append(BankFolder(path, size / 1e6, (now - path.stat().st_mtime) / DAY))
    return banks


def prune(cache: Path, days: float) -> list[BankFolder]:
    """Remove the banks that were not opened for this many days; returns what was removed."""
    unused = [bank for bank in list_banks(cache) if bank.days >= days]
    for bank in unused:
        doomed = bank.path.with_name(f".removed-{os.getpid()}-{bank.path.name}")  # at once, so that none is half there
        bank.path.rename(doomed)
        shutil.rmtree(doomed)
    return unused
