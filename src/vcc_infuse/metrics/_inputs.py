"""Tensors, arrays and lists as checked tensors on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import UserError

Values = Tensor | np.ndarray | Sequence[Any]

# A softmax or a mean of softmaxes in float32 can leave [0, 1] by a few rounding errors.
ROUNDING = 1e-5


def numbers(name: str, values: Values, ndim: int = 1) -> Tensor:
    """`values` as a float64 tensor of `ndim` dimensions, not empty and without NaN."""
    if not isinstance(values, Tensor):
        array = np.asarray(values)
        if array.dtype.kind not in "biuf":
            raise UserError(f"{name} must hold numbers, got dtype {array.dtype}")
        values = torch.from_numpy(array.astype(np.float64))
    tensor = values.detach().to("cpu", torch.float64)
    if tensor.ndim != ndim:
        raise UserError(f"{name} must have {ndim} dimension(s), got shape {tuple(tensor.shape)}")
    if tensor.numel() == 0:
        raise UserError(f"{name} must not be empty; pass at least one example")
    if tensor.isnan().any():
        raise UserError(f"{name} must not hold NaN, got {int(tensor.isnan().sum())} of them; remove those examples")
    return tensor


def unit(name: str, values: Values, ndim: int = 1) -> Tensor:
    """Numbers in [0, 1]; rounding errors are clamped."""
    tensor = numbers(name, values, ndim)
    low = float(tensor.min())
    high = float(tensor.max())
    if low < -ROUNDING or high > 1 + ROUNDING:
        raise UserError(f"{name} must lie in [0, 1], got values in [{low:.6g}, {high:.6g}]; apply a softmax to logits")
    return tensor.clamp(0, 1)


def class_numbers(name: str, values: Values, low: int = 0, classes: int | None = None) -> Tensor:
    """Integers of at least `low` (and below `classes`)."""
    tensor = numbers(name, values)
    if (tensor != tensor.round()).any():
        raise UserError(f"{name} must hold integers, the class numbers; got fractions")
    if tensor.min() < low:
        raise UserError(f"{name} must hold classes of at least {low}, got {tensor.min():.0f}")
    if classes is not None and tensor.max() >= classes:
        raise UserError(f"{name} must hold classes below {classes}, got {tensor.max():.0f}")
    return tensor.long()


def same_length(**named: Tensor) -> None:
    """Check that all columns have one value per example."""
    if len({len(tensor) for tensor in named.values()}) > 1:
        sizes = ", ".join(f"{name} has {len(tensor)}" for name, tensor in named.items())
        raise UserError(f"inputs must have the same length, but {sizes}")


def probs_and_truth(name: str, values: Values, y: Values) -> tuple[Tensor, Tensor]:
    """Probabilities of shape (examples, classes) and the true classes, of shape (examples,)."""
    probs = unit(name, values, 2)
    truth = class_numbers("y", y, classes=probs.shape[1])
    same_length(**{name: probs, "y": truth})
    return probs, truth


def correctness(confidence: Tensor, correct: Values) -> Tensor:
    """Whether each prediction is correct, as 0.0 or 1.0."""
    right = numbers("correct", correct)
    if ((right != 0) & (right != 1)).any():
        raise UserError("correct must hold only True and False (or 1 and 0); pass prediction == truth")
    same_length(confidence=confidence, correct=right)
    return right
