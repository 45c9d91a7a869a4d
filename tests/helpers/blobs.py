"""Vectors of overlapping classes."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def blobs(rows: int, width: int = 30, classes: int = 4, seed: int = 0, noise: float = 1.0) -> tuple[Tensor, Tensor]:
    """Rows of unit length on average around their mean, in classes that overlap."""
    rng = np.random.default_rng(seed)
    y = np.arange(rows) % classes
    x = np.random.default_rng(99).normal(size=(classes, width))[y] + noise * 3 * rng.normal(size=(rows, width))
    x -= x.mean(0)
    return torch.from_numpy(x / np.sqrt((x**2).sum(1).mean())), torch.from_numpy(y)
