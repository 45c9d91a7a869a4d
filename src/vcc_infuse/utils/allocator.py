"""Reuse of freed memory: glibc returns every large block to the system, and the next one costs page faults again.

A training step frees and requests the same blocks over and over. `VCC_INFUSE_MALLOC=system` leaves glibc as it is;
other allocators (LD_PRELOAD=libjemalloc.so) and other systems are not affected. results/bench/steps.md has the effect.
"""

from __future__ import annotations

import ctypes
import os
import sys

# Names and numbers of malloc.h.
TRIM_THRESHOLD = -1
MMAP_THRESHOLD = -3
LARGEST_INT = 2**31 - 1
LARGEST_THRESHOLD = 2**25  # glibc refuses more


def keep_freed_memory() -> bool:
    """Serve blocks of up to 32 MB from memory that was freed before.

    Returns:
        Whether glibc accepted both settings; False where they do not apply.
    """
    if sys.platform != "linux" or os.environ.get("VCC_INFUSE_MALLOC") == "system":
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    settings = ((TRIM_THRESHOLD, LARGEST_INT), (MMAP_THRESHOLD, LARGEST_THRESHOLD))
    return all(library.mallopt(name, value) == 1 for name, value in settings)
