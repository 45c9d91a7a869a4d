"""Decoded arrays kept on disk under a key made from their content, and memory-mapped in later runs."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ..utils import manifest

FORMAT = 1  # raise it when decoding or layout changes, so that old entries are no longer found
Allocate = Callable[[str, tuple[int, ...]], np.ndarray]  # name, shape
Entry = tuple[dict[str, np.ndarray], dict[str, Any]]  # uint8 arrays by name, and facts that JSON can hold


def cache_folder(folder: str | None = None) -> Path:
    """The given folder, else $VCC_INFUSE_CACHE, else ~/.cache/vcc-infuse."""
    return Path(folder or os.environ.get("VCC_INFUSE_CACHE") or "~/.cache/vcc-infuse").expanduser()


def cached(key: list[Any], folder: str | None, build: Callable[[Allocate], dict[str, Any]]) -> Entry:
    """The entry for `key`; if absent or damaged, `build` fills arrays it allocates and returns the facts."""
    home = cache_folder(folder)
    target = home / hashlib.sha256(repr([FORMAT, key]).encode()).hexdigest()[:32]
    entry = _read(target)
    if entry is None:
        try:
            _write(home, target, build)
        except OSError as error:
            warnings.warn(f"cache folder {home} is not usable ({error}): decoding without it", stacklevel=2)
            return _in_memory(build)
        entry = _read(target)
    return entry or _in_memory(build)


def _read(target: Path) -> Entry | None:
    """None if the entry is absent or damaged."""
    if not target.exists():
        return None
    try:
        stats = [(path.name, path.stat()) for path in sorted(target.iterdir())]
        _verify(target, tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats))
        facts = json.loads((target / "facts.json").read_text())
        arrays = {n: np.load(target / f"{n}.npy", mmap_mode="r", allow_pickle=False) for n in facts["arrays"]}
    except (OSError, ValueError, KeyError, EOFError, TypeError, AttributeError):
        return None
    return arrays, facts["facts"]


@lru_cache
def _verify(target: Path, stamps: tuple[object, ...]) -> None:
    """Compare all checksums, once per process as long as no file has another size or time."""
    manifest.check(target, ["facts.json", *(path.name for path in target.glob("*.npy"))])


def _write(home: Path, target: Path, build: Callable[[Allocate], dict[str, Any]]) -> None:
    """Build in a temporary folder and rename it, so that no process ever sees half an entry."""
    home.mkdir(parents=True, exist_ok=True)
    for leftover in os.scandir(home):  # of processes that were killed more than a day ago
        if leftover.name.startswith(".building-") and time.time() - os.path.getmtime(leftover) > 86400:
            shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=".building-", dir=home, ignore_cleanup_errors=True) as temporary:
        new = Path(temporary) / "entry"
        new.mkdir()
        arrays: dict[str, np.memmap] = {}

        def allocate(name: str, shape: tuple[int, ...]) -> np.ndarray:
            path = new / f"{name}.npy"
            arrays[name] = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=shape)
            if hasattr(os, "posix_fallocate"):  # a full disk must be an error here, not a crash when a page is written
                with open(path, "r+b") as file:
                    os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
            return arrays[name]

        facts = build(allocate)
        for array in arrays.values():
            array.flush()
        content = json.dumps({"arrays": list(arrays), "facts": facts}).encode()
        manifest.publish(new, {"facts.json": content}, existing=[f"{name}.npy" for name in arrays])
        try:
            if _read(target) is None and target.exists():
                target.rename(Path(temporary) / "damaged")
            new.rename(target)
        except OSError:
            if _read(target) is None:  # else another process was faster, and its entry is as good
                raise


def _in_memory(build: Callable[[Allocate], dict[str, Any]]) -> Entry:
    arrays: dict[str, np.ndarray] = {}

    def allocate(name: str, shape: tuple[int, ...]) -> np.ndarray:
        arrays[name] = np.empty(shape, np.uint8)
        return arrays[name]

    return arrays, build(allocate)
