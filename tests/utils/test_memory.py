"""Freed memory is used again instead of being fetched from the system."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, resource
from vcc_infuse.utils.memory import keep_freed_memory
print(keep_freed_memory())
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.memset.argtypes, libc.free.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t], [ctypes.c_void_p]
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    block = libc.malloc(30_000_000)
    libc.memset(block, 1, 30_000_000)
    libc.free(block)
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 7000)
"""


def run(**variables):
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM], env={**os.environ, **variables}, check=True, capture_output=True, text=True
    )
    said, faults = found.stdout.split()
    return said == "True", int(faults)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc only")
def test_blocks_are_fetched_once():
    kept, faults = run()
    system, more = run(VCC_INFUSE_MALLOC="system")
    assert kept
    assert not system
    assert faults <= 2  # of 20 blocks of about 7,300 pages
    assert more >= 2 * max(faults, 1)
