"""A look at the model that leaves no trace: eval mode, and every random generator put back afterwards."""

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
    """All modules in eval mode; each one's own flag and the random states return on leaving."""
    flags = [(part, part.training) for module in modules for part in module.modules()]
    ours, numpys = random.getstate(), np.random.get_state()
    devices = [device] if torch.device(device).type == "cuda" else []
    try:
        with torch.random.fork_rng(devices):
            for module in modules:
                module.eval()
            yield
    finally:
        for part, training in flags:
            part.training = training
        random.setstate(ours)
        np.random.set_state(numpys)


def seed_chunk(*key: int) -> None:
    """Make the draws of one chunk a function of the key alone, whichever process computes it."""
    torch.manual_seed(int(np.random.SeedSequence(list(key)).generate_state(1)[0]))


def seed_step(seed: int, step: int, rank: int) -> None:
    """Make every random draw of a step a function of (seed, step, rank): a resumed run has nothing to restore."""
    set_seed(int(np.random.SeedSequence([seed, step, rank]).generate_state(1)[0]))
