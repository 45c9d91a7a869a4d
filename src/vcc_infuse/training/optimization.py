"""The optimizer and its schedule: SGD with Nesterov momentum, decay on matrices only, 7/16 of a cosine."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn


def parameter_groups(modules: Iterable[nn.Module], weight_decay: float) -> list[dict[str, Any]]:
    """Two groups: tensors with more than one dimension decay, biases and BatchNorm scales do not."""
    parameters = [p for module in modules for p in module.parameters() if p.requires_grad]
    matrices = [p for p in parameters if p.ndim > 1]
    vectors = [p for p in parameters if p.ndim <= 1]
    return [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]


def sgd(modules: Iterable[nn.Module], lr: float, momentum: float, weight_decay: float) -> torch.optim.SGD:
    """SGD with Nesterov momentum (plain SGD if momentum is zero)."""
    groups = parameter_groups(modules, weight_decay)
    return torch.optim.SGD(groups, lr=lr, momentum=momentum, nesterov=momentum > 0)


def learning_rate(lr: float, step: int, steps: int, schedule: str = "cosine") -> float:
    """η₀·cos(7πk/16K) at step k of K, or η₀ throughout."""
    return lr * math.cos(7 * math.pi * step / (16 * steps)) if schedule == "cosine" else lr


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """The same learning rate for every parameter group."""
    for group in optimizer.param_groups:
        group["lr"] = lr
