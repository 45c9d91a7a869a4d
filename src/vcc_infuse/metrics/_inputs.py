"""What a metric accepts: tensors, arrays and lists become checked tensors on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import UserError

Values = Tensor | np.ndarray | Sequence[Any]


# A softmax or a mean of softmaxes in float32 may leave [0, 1] by a few rounding errors.
ROUNDING = 1e-5


def numbers(name: str, values: Values, ndim: int = 1) -> Tensor:
    """`values` as a float64 tensor of `ndim` dimensions, not empty and without NaN."""
    if not isinstance(values, Tensor):
        array = np.asarray(values)
        if array.dtype.kind not in "biuf":
            raise UserError(f"{name} holds {array.dtype} values; pass numbers")
        values = torch.from_numpy(array.astype(np.float64))
    tensor = values.detach().to("cpu", torch.float64)
    if tensor.ndim != ndim:
        raise UserError(f"{name} has shape {tuple(tensor.shape)}; it needs {ndim} dimension(s)")
    if tensor.numel() == 0:
        raise UserError(f"{name} is empty; pass at least one example")
    if tensor.isnan().any():
        raise UserError(f"{name} has {int(tensor.isnan().sum())} NaN; remove those examples first")
    return tensor


def unit(name: str, values: Values, ndim: int = 1) -> Tensor:
    """Numbers in [0, 1]; what only rounding put outside is clamped."""
    tensor = numbers(name, values, ndim)
    low, high = float(tensor.min()), float(tensor.max())
    if low < -ROUNDING or high > 1 + ROUNDING:
        raise UserError(f"{name} lies in [{low:.6g}, {high:.6g}], not in [0, 1]; logits need a softmax first")
    return tensor.clamp(0, 1)


def class_numbers(name: str, values: Values, low: int = 0, classes: int | None = None) -> Tensor:
    """Whole numbers from `low` (to `classes` - 1)."""
    tensor = numbers(name, values)
    smallest, largest = float(tensor.min()), float(tensor.max())
    if (tensor != tensor.round()).any():
        raise UserError(f"{name} has fractions; pass class numbers")
    if smallest < low:
        raise UserError(f"{name} has the class {smallest:.0f}; the smallest allowed is {low}")
    if classes is not None and largest >= classes:
        raise UserError(f"{name} has the class {largest:.0f}, but the classes are 0…{classes - 1}")
    return tensor.long()


def same_length(**named: Tensor) -> None:
    """Refuse columns that do not belong to the same examples."""
    if len({len(tensor) for tensor in named.values()}) > 1:
        sizes = ", ".join(f"{name} has {len(tensor)}" for name, tensor in named.items())
        raise UserError(f"one value an example is needed, but {sizes}")


def scored(name: str, values: Values, y: Values) -> tuple[Tensor, Tensor]:
    """Probabilities N×K and the N true classes."""
    probs = unit(name, values, 2)
    truth = class_numbers("y", y, classes=probs.shape[1])
    same_length(**{name: probs, "y": truth})
    return probs, truth


def judged(confidence: Tensor, correct: Values) -> Tensor:
    """Whether each prediction was right, as 0.0 or 1.0."""
    right = numbers("correct", correct)
    if ((right != 0) & (right != 1)).any():
        raise UserError("correct must hold only True and False (or 1 and 0): pass prediction == truth")
    same_length(confidence=confidence, correct=right)
    return right


def positive(name: str, value: int) -> int:
    """A whole number from 1."""
    if isinstance(value, bool) or value != int(value) or value < 1:
        raise UserError(f"{name}={value} is not possible; it must be a whole number from 1")
    return int(value)
