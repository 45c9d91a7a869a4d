"""Random seeds, and evaluation that leaves modes and random states unchanged."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import numpy as np
import torch
from torch import nn

has_accelerator = cache(torch.accelerator.is_available)


@contextmanager
def preserve_mode_and_rng(*modules: nn.Module, device: torch.device | str = "cpu") -> Iterator[None]:
    """Put all modules in eval mode; on exit restore the mode of each submodule and all random states."""
    modes = [(part, part.training) for module in modules for part in module.modules()]
    python_state = random.getstate()
    numpy_state = np.random.get_state()
    devices = [device] if torch.device(device).type == "cuda" else []
    try:
        with torch.random.fork_rng(devices):
            for module in modules:
                module.eval()
            yield
    finally:
        for part, training in modes:
            part.training = training
        random.setstate(python_state)
        np.random.set_state(numpy_state)


def seed_chunk(*key: int) -> None:
    """Make the draws of one chunk a function of the key alone, whichever process computes it."""
    seed_torch(int(np.random.SeedSequence(list(key)).generate_state(1)[0]))


def seed_step(seed: int, step: int, rank: int) -> None:
    """Make every random draw of a step a function of (seed, step, rank), so that no random state must be saved."""
    number = int(np.random.SeedSequence([seed, step, rank]).generate_state(1)[0])
    random.seed(number)
    np.random.seed(number)
    seed_torch(number)


def seed_torch(seed: int) -> None:
    """`torch.manual_seed`, without the millisecond that it spends on GPUs that are not there."""
    if has_accelerator():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)
