"""Keeping freed memory: glibc gives every large block back to the system, and the next one costs page faults again.

A training step frees and asks for the same blocks over and over. `VCC_INFUSE_MALLOC=system` leaves glibc as it is;
other allocators (LD_PRELOAD=libjemalloc.so) and other systems are not affected. results/bench/steps.md has the effect.
"""

from __future__ import annotations

import ctypes
import os
import sys

# Names and numbers of malloc.h.
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
LARGEST_INT = 2**31 - 1
LARGEST_THRESHOLD = 2**25  # glibc refuses more


def keep_freed_memory() -> bool:
    """Serve blocks of up to 32 MB from memory that was freed before; says whether the system took the order."""
    if sys.platform != "linux" or os.environ.get("VCC_INFUSE_MALLOC") == "system":
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    orders = ((TRIM_THRESHOLD, LARGEST_INT), (MMAP_THRESHOLD, LARGEST_THRESHOLD))
    return all(library.mallopt(name, value) == 1 for name, value in orders)
