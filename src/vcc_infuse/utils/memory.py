"""The memory of the CPU, and what becomes of it when it is freed."""

from __future__ import annotations

import ctypes
import os
import sys

# Names and numbers of malloc.h; glibc refuses a larger MMAP_THRESHOLD.
MALLOC_SETTINGS = {"TRIM_THRESHOLD": (-1, 2**31 - 1), "MMAP_THRESHOLD": (-3, 2**25)}


def keep_freed_memory() -> bool:
    """Serve blocks of up to 32 MB from memory that was freed before; False where that does not apply.

    A training step frees and requests the same blocks over and over; glibc returns every large one to the system, and
    the next costs page faults again. `VCC_INFUSE_MALLOC=system` leaves glibc as it is; other allocators
    (LD_PRELOAD=libjemalloc.so) and other systems are not affected. results/bench/steps.md has the effect.
    """
    if sys.platform != "linux" or os.environ.get("VCC_INFUSE_MALLOC") == "system":
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    return all(library.mallopt(name, value) == 1 for name, value in MALLOC_SETTINGS.values())
