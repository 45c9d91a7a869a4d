"""`--memory`: how many images a forward and backward may take at once, so that a step fits the memory that is set."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..errors import OptionError
from ..types import Task
from .config import memory_bytes
from .summary import peak_memory

PROBE = 2  # images whose activations are counted
SMALLEST = 2  # BatchNorm cannot normalize a single image
TEMPORARY = 2.0
"""Peak of a piece over what autograd keeps of it: gradients of activations, workspaces, what the allocator leaves."""


def fit_micro_batch(memory: str, model: nn.Module, views: Tensor, task: Task, optimizer: Any) -> int | None:
    """The largest piece with which a step stays below `memory`; None if the whole batch does.

    `views` are two examples as the network sees them. What is there already counts, and so do the gradients and moments
    that the optimizer will add, and all views of the batch.
    """
    rows = task.batch_size + task.unlabeled_batch_size
    batch = 2 * (rows + task.unlabeled_batch_size) * views[0].nbytes  # raw and normalized, weak and strong
    learned = sum(parameter.nbytes for group in optimizer.param_groups for parameter in group["params"])
    there = used_bytes(views.device) + 3 * learned + batch
    each = TEMPORARY * saved_bytes(model, views) / len(views)
    pieces = int((memory_bytes(memory) - there) // each)
    if pieces < SMALLEST:
        least = f"{(there + SMALLEST * each) / 1e9:.1f}GB"
        raise OptionError("memory", memory, "is too little for two images at a time", f"give at least {least}")
    return None if pieces >= rows else pieces


def used_bytes(device: torch.device) -> float:
    """Memory of this process, or of the GPU, that is in use."""
    if device.type == "cuda":
        return float(torch.cuda.memory_allocated(device))
    return (peak_memory() or 0.0) * 1024**2


def saved_bytes(model: nn.Module, x: Tensor) -> int:
    """Bytes that autograd keeps of a forward of `x`, parameters aside; the model is not changed."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    before = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.random.fork_rng(), torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        model(x)
    model.load_state_dict(before)
    return sum(kept.values())
