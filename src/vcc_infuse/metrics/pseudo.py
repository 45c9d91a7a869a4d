"""How many pseudo labels a method uses, and how many of those are right where the truth is known."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import UserError
from ._inputs import Values, class_numbers, numbers, positive, same_length


class PseudoLabelQuality(NamedTuple):
    """`coverage`: mean weight. `precision`: weighted share of right labels, NaN without any known truth."""

    coverage: float
    precision: float


class ClassQuality(NamedTuple):
    """One row a pseudo class, in float64: examples given it, their mean weight, their weighted precision."""

    count: Tensor  # type: ignore[assignment]  # hides tuple.count, which nobody needs here
    coverage: Tensor
    precision: Tensor


def pseudo_label_quality(labels: Values, weights: Values, truth: Values) -> PseudoLabelQuality:
    """Judge labels used with `weights` (0 = left out) against `truth` (-1 = unknown)."""
    pseudo, used, y = _checked(labels, weights, truth)
    judged = used * (y >= 0)
    return PseudoLabelQuality(float(used.mean()), float((judged * (pseudo == y)).sum() / judged.sum()))


def pseudo_label_quality_per_class(labels: Values, weights: Values, truth: Values, classes: int) -> ClassQuality:
    """The same for each pseudo class by itself; NaN where a class has nothing to judge."""
    classes = positive("classes", classes)
    pseudo, used, y = _checked(labels, weights, truth, classes)
    judged = used * (y >= 0)

    def total(values: Tensor) -> Tensor:
        return torch.bincount(pseudo, values, minlength=classes)

    count = total(torch.ones_like(used))
    return ClassQuality(count, total(used) / count, total(judged * (pseudo == y)) / total(judged))


def _checked(
    labels: Values, weights: Values, truth: Values, classes: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    pseudo = class_numbers("labels", labels, classes=classes)
    y = class_numbers("truth", truth, low=-1, classes=classes)
    used = numbers("weights", weights)
    same_length(labels=pseudo, weights=used, truth=y)
    if (used < 0).any() or used.isinf().any():
        raise UserError("weights must be finite and not below 0: 0 leaves an example out")
    return pseudo, used, y
