"""Helpers of several processes, on one process; tests/integration/test_every_processes.py starts two."""

import random

import numpy as np
import torch

from vcc_infuse.training.distributed import average_, gather
from vcc_infuse.utils.seeding import seed_step


def test_a_single_process_changes_nothing():
    x = torch.arange(6.0).view(3, 2)
    assert gather(x) is x
    average_([x])
    assert torch.equal(x, torch.arange(6.0).view(3, 2))


def test_a_step_seeds_every_generator():
    def draw(step, rank):
        seed_step(5, step, rank)
        return torch.rand(1).item(), float(np.random.rand()), random.random()

    assert draw(3, 0) == draw(3, 0)
    assert len({draw(3, 0), draw(4, 0), draw(3, 1)}) == 3
