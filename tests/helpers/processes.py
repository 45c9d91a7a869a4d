"""Processes that are forks of this one: they start at once, because torch and the package are imported already."""

from __future__ import annotations

import os
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import torch.distributed as dist
from accelerate.state import AcceleratorState


def fork(work: Callable[[], object], log: Path) -> int:
    """Start a process that calls `work`; returns its id. What it prints goes to `log`; a fault gives status 1.

    `work` may return an exit status.
    """
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        with open(log, "a", encoding="utf-8", buffering=1) as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            sys.stdout = sys.stderr = output
            try:
                result = work()
                status = result if isinstance(result, int) else 0
            except BaseException:
                traceback.print_exc()
    finally:
        os._exit(status)


def wait(pid: int) -> int:
    """The exit status of a process; -N if signal N ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def together(world: int, work: Callable[[], object], log: Path) -> None:
    """Call `work` in `world` processes that find one another as those of torchrun do, and expect success of all."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    pids = [fork(lambda rank=rank: joined(rank, world, port, work), log) for rank in range(world)]
    statuses = [wait(pid) for pid in pids]
    assert statuses == [0] * world, log.read_text()[-3000:]


def joined(rank: int, world: int, port: int, work: Callable[[], object]) -> object:
    """Call `work` as one of several processes."""
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    os.environ |= {name: str(value) for name, value in place.items()} if world > 1 else {}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)} if world > 1 else {}
    AcceleratorState._reset_state(reset_partial_state=True)  # it remembers the one process that this is a fork of
    result = work()
    if dist.is_initialized():
        dist.destroy_process_group()
    return result
