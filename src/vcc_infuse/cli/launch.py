"""`accelerate launch --num_processes N` on a machine without GPUs.

There accelerate's launcher starts a single process and leaves the rest to an MPI installation. We start the N processes
with torch's own launcher instead, so that the same command works with and without GPUs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

import psutil
import torch


def wanted_processes(environment: Mapping[str, str], parent: Sequence[str]) -> int:
    """How many processes `accelerate launch` was asked for but did not start; 1 where all is well."""
    by_accelerate = "ACCELERATE_MIXED_PRECISION" in environment and "MASTER_ADDR" in environment
    if not by_accelerate or "WORLD_SIZE" in environment:
        return 1
    words = [word for item in parent for word in item.split("=", 1)]
    for option in ("--num_processes", "--num-processes"):
        if option in words[:-1]:
            return int(words[words.index(option) + 1])
    return 1


def relaunch(words: Sequence[str]) -> int | None:
    """Run this command on the processes asked for and return its exit status; None if there is nothing to do."""
    parent = psutil.Process().parent()
    count = wanted_processes(os.environ, parent.cmdline() if parent else [])
    if count == 1 or torch.cuda.is_available():
        return None
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(count)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MASTER_")}
    return subprocess.run([*command, "-m", "vcc_infuse", *words], env=environment).returncode
