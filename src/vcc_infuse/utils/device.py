"""Devices, and the floating-point formats that depend on them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import OptionError


def resolve_device(device: str) -> torch.device:
    """`auto` is the accelerator where there is one; a GPU's number makes it the current one of this process."""
    # Without a hint accelerate joins no process group where there is no GPU: each process would believe it is alone.
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
    """A tensor of the CPU on the device; a GPU fetches it while the CPU goes on, which takes pinned memory."""
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


def unit_features(features: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Standardized features scaled to unit length: what heads on frozen features are trained on."""
    return F.normalize((features.float() - mean) / std, dim=-1)
