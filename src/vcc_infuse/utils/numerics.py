"""Floating-point formats that depend on the device."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def to_float64(numbers: Tensor) -> Tensor:
    """`numbers` in double precision, or in single precision on devices without it (Apple's MPS)."""
    return numbers.to(torch.float32 if numbers.device.type == "mps" else torch.float64)


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
