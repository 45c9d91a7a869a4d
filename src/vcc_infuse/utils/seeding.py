"""Random seeds, and evaluation that leaves modes and random states unchanged."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from accelerate.utils import set_seed
from torch import nn


@contextmanager
def preserve_mode_and_rng(*modules: nn.Module, device: torch.device | str = "cpu") -> Iterator[None]:
    """Put all modules in eval mode; on exit each submodule's own mode and all random states are restored."""
    modes = [(part, part.training) for module in modules for part in module.modules()]
    python_state, numpy_state = random.getstate(), np.random.get_state()
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
    """Make the random draws for one chunk a function of the key alone, whichever process computes it."""
    torch.manual_seed(int(np.random.SeedSequence(list(key)).generate_state(1)[0]))


def seed_step(seed: int, step: int, rank: int) -> None:
    """Make all random draws of a step a function of (seed, step, rank), so that resuming needs no random state."""
    set_seed(int(np.random.SeedSequence([seed, step, rank]).generate_state(1)[0]))
