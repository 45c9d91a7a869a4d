"""Floating-point formats that depend on the device."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def to_float64(numbers: Tensor) -> Tensor:
    """`numbers` in double precision, or in single precision on devices without it (Apple's MPS)."""
    return numbers.to(torch.float32 if numbers.device.type == "mps" else torch.float64)


def unit_features(features: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Standardized features scaled to unit length: what heads on frozen features are trained on."""
    return F.normalize((features.float() - mean) / std, dim=-1)
