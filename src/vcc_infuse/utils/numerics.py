"""Floating-point formats that depend on the device."""

from __future__ import annotations

import torch
from torch import Tensor


def to_float64(numbers: Tensor) -> Tensor:
    """`numbers` in double precision, or in single precision on devices without it (Apple's MPS)."""
    return numbers.to(torch.float32 if numbers.device.type == "mps" else torch.float64)
