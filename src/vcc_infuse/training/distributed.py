"""The device, the precision and the processes of a run, through accelerate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import Tensor, nn

from ..errors import OptionError, UserError
from ..models.classifier import batchnorms
from ..utils.device import fast_bf16, resolve_device


def make_accelerator(
    precision: str = "auto", device: str = "auto", tracker: str = "none", folder: str | None = None
) -> Accelerator:
    """A fresh Accelerator: its precision is process-wide, but a second run in one process must be free to set it.

    The precision `auto` is bf16 where the hardware computes in it, float32 elsewhere.
    """
    cpu = resolve_device(device).type == "cpu"
    AcceleratorState._reset_state(reset_partial_state=False)
    chosen = Accelerator(cpu=cpu, mixed_precision="no").device
    if precision == "fp16" and chosen.type == "cpu":
        raise OptionError("precision", precision, "needs a GPU", "use bf16, fp32 or auto on this machine")
    if precision == "auto":
        precision = "bf16" if fast_bf16(chosen) else "fp32"
    AcceleratorState._reset_state(reset_partial_state=False)
    mixed = "no" if precision == "fp32" else precision
    log_with = None if tracker == "none" else tracker
    return Accelerator(cpu=cpu, mixed_precision=mixed, log_with=log_with, project_dir=folder)


def autocast(accelerator: Accelerator) -> AbstractContextManager[Any]:
    """The precision of a run, around a forward; accelerate's own would read all environment variables at every call."""
    if accelerator.mixed_precision == "no":
        return nullcontext()
    kind = torch.float16 if accelerator.mixed_precision == "fp16" else torch.bfloat16
    # torch 2.10 caches a weight that it casts under no_grad, as for the weak view, without its gradient.
    return torch.autocast(accelerator.device.type, kind, cache_enabled=False)


class ProcessLost(UserError):  # noqa: N818 - named after what happened
    """Another process of this run has ended, so this one cannot go on."""

    every_process = True


@contextmanager
def together() -> Iterator[None]:
    """Around a message between processes: where another one has died, torch raises RuntimeErrors of many kinds."""
    try:
        yield
    except RuntimeError as fault:
        reason = str(fault).partition("\n")[0][:200]
        remedy = "see what it said, then continue with train --resume"
        raise ProcessLost(f"another process of this run has ended ({reason}); {remedy}") from fault


def wait_for_everyone(accelerator: Accelerator) -> None:
    """Go on when all processes have come here."""
    with together():
        accelerator.wait_for_everyone()


def gather(tensor: Tensor) -> Tensor:
    """The rows of all processes, in the order of the global batch; the tensor itself where there is one process."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return tensor
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    with together():
        dist.all_gather(parts, tensor.contiguous())
    # Process r holds rows r, r + world, …: interleaving restores the single-process order.
    return torch.stack(parts, 1).flatten(0, 1)


def average_(tensors: Iterable[Tensor]) -> None:
    """Replace tensors by their mean over processes, in one message."""
    tensors = list(tensors)
    if not tensors or not dist.is_initialized() or dist.get_world_size() == 1:
        return
    flat = torch.cat([t.detach().flatten().float() for t in tensors])
    with together():
        dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for tensor, part in zip(tensors, torch.split(flat, [t.numel() for t in tensors]), strict=True):
        tensor.detach().copy_(part.view_as(tensor))


def average_gradients(modules: Iterable[nn.Module], model: nn.Module) -> None:
    """After backward: one mean over gradients and the model's BatchNorm statistics keeps every process identical."""
    if not dist.is_initialized():
        return
    gradients = [p.grad for module in modules for p in module.parameters() if p.grad is not None]
    layers = [layer for layer in batchnorms(model) if layer.running_mean is not None]
    statistics = [b for layer in layers for b in (layer.running_mean, layer.running_var) if b is not None]
    average_([*gradients, *statistics])
