"""What several processes must agree on: gathered rows, averaged gradients and averaged BatchNorm statistics."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
import torch.distributed as dist
from accelerate.utils import set_seed
from torch import Tensor, nn

from .models.batchnorm import batchnorms


def gather(tensor: Tensor) -> Tensor:
    """The rows of all processes, in the order of the global batch; the tensor itself where there is one process."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return tensor
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor.contiguous())
    # Process r holds rows r, r + world, …: interleaving restores the single-process order.
    return torch.stack(parts, 1).flatten(0, 1)


def average_(tensors: Iterable[Tensor]) -> None:
    """Replace tensors by their mean over processes, in one message."""
    tensors = list(tensors)
    if not tensors or not dist.is_initialized() or dist.get_world_size() == 1:
        return
    flat = torch.cat([t.detach().flatten().float() for t in tensors])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for tensor, part in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
        tensor.detach().copy_(part.view_as(tensor))


def average_step_(modules: Iterable[nn.Module], model: nn.Module) -> None:
    """After backward: one mean over gradients and the model's BatchNorm statistics keeps every process identical."""
    gradients = [p.grad for module in modules for p in module.parameters() if p.grad is not None]
    layers = [layer for layer in batchnorms(model) if layer.running_mean is not None]
    statistics = [b for layer in layers for b in (layer.running_mean, layer.running_var) if b is not None]
    average_([*gradients, *statistics])


def seed_step(seed: int, step: int, rank: int) -> None:
    """Make every random draw of a step a function of (seed, step, rank): a resumed run has nothing to restore."""
    set_seed(int(np.random.SeedSequence([seed, step, rank]).generate_state(1)[0]))
