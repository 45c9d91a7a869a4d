"""Processes that are forks of this one: they start at once, because torch and the package are imported already."""

from __future__ import annotations

import os
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import torch.distributed as dist


def fork(work: Callable[[], object], log: Path) -> int:
    """Start a process that calls `work`; returns its id. What it prints goes to `log`; a fault gives status 1.

    `work` may return an exit status.
    """
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)
        result = work()
        status = result if isinstance(result, int) else 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
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
    result = work()
    if dist.is_initialized():
        dist.destroy_process_group()
    return result
