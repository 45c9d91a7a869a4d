"""Selects a core set with one, two and three processes, which are forks of this one.

Started by test_several_processes.py as `python -m tests.helpers.several_worker FOLDER`.
"""

from __future__ import annotations

import os
import socket
import sys
import traceback
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

from tests.helpers.every import SELECTORS, few_digits, lively, name, trainer
from vcc_infuse import FixMatch, SmallConv, SSLData

WORLDS = (1, 2, 3)


def select(data: SSLData, folder: Path, rank: int, world: int) -> None:
    """The first core set of every selector, by an untrained model."""
    for kind in SELECTORS:
        torch.manual_seed(0)
        job = trainer(SmallConv(4), (lively(FixMatch), None, lively(kind)), batch_size=6)
        job.prepare(data)
        assert job.state_.world == world
        job.refresh_coreset(0)
        job.train_step(0)
        coreset = job.state_.coreset_scheduler.coreset
        torch.save(None if coreset is None else tuple(coreset), folder / f"{name(kind)}-{world}-{rank}.pt")


def start(data: SSLData, folder: Path, rank: int, world: int, port: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        if world > 1:
            where = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
            os.environ |= {key: str(value) for key, value in where.items()}
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        select(data, folder, rank, world)
        if world > 1:
            dist.destroy_process_group()
        status = 0
    except BaseException:
        traceback.print_exc()
    os._exit(status)


def main(folder: Path) -> int:
    data, failed = few_digits(1437), 0
    pool = data.split.pool[: len(data.split.pool) // 6 * 6 - 5]  # neither two nor three processes share it evenly
    data = replace(data, split=replace(data.split, pool=pool))
    for world in WORLDS:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        pids = [start(data, folder, rank, world, port) for rank in range(world)]
        failed += sum(os.waitpid(pid, 0)[1] != 0 for pid in pids)
    return failed


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main(Path(sys.argv[1])))
