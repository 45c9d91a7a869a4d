"""Devices, and the floating-point formats that depend on them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import OptionError


def resolve_device(device: str) -> torch.device:
    """The device of a name; `auto` is an accelerator if there is one. A numbered GPU becomes the current one."""
    available = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if device == "auto":
        return available or torch.device("cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError as fault:
        raise OptionError("device", device, "must be auto, cpu, cuda, cuda:N or mps") from fault
    if chosen.type != "cpu":
        if available is None or chosen.type != available.type:
            raise OptionError("device", device, "must be a device of this machine", "use auto or cpu")
        if chosen.index is not None:
            torch.accelerator.set_device_index(chosen.index)
    return chosen


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """Move a tensor from the CPU to `device`; a GPU copies it from pinned memory while the CPU continues."""
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)


def to_float64(numbers: Tensor) -> Tensor:
    """`numbers` in double precision, or in single precision on devices without it (Apple's MPS)."""
    return numbers.to(torch.float32 if numbers.device.type == "mps" else torch.float64)


def class_counts(labels: Tensor, classes: int) -> Tensor:
    """Number of examples per class; unlike bincount it does not synchronize with the device."""
    return torch.zeros(classes, dtype=torch.long, device=labels.device).index_add_(0, labels, torch.ones_like(labels))


def fast_bf16(device: torch.device) -> bool:
    """Whether the hardware computes in bfloat16."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type == "cpu":
        return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
    return False


def product_type(device: torch.device) -> torch.dtype:
    """The type in which products may be computed here: bfloat16 where autocast computes in it, else float32."""
    kind = device.type
    coarse = torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == torch.bfloat16
    return torch.bfloat16 if coarse else torch.float32


def product(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A linear layer whose product is computed in the type of the inputs, and all the rest in float32."""
    return F.linear(inputs, weight.to(inputs.dtype)).float() + bias


def unit_features(features: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Standardize features of shape (…, width) and scale them to unit length, as heads on frozen features expect."""
    return F.normalize((features.float() - mean) / std, dim=-1)
