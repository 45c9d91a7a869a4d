"""How many pseudo labels a method uses, and how many of them are right where the truth is known."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import UserError, check_integer
from .classification import Values, class_numbers, numbers, same_length


class PseudoLabelQuality(NamedTuple):
    """The mean weight, and the weighted fraction of correct labels: NaN if no truth is known."""

    coverage: float
    precision: float


class ClassQuality(NamedTuple):
    """The examples of each pseudo class, their mean weight and their weighted precision, each of shape (classes,)."""

    count: Tensor  # type: ignore[assignment]  # hides tuple.count, which is not needed here
    coverage: Tensor
    precision: Tensor


def pseudo_label_quality(labels: Values, weights: Values, truth: Values) -> PseudoLabelQuality:
    """Compare pseudo labels with the truth where it is known.

    Args:
        labels: pseudo labels, of shape (examples,).
        weights: the weight of each in the loss, of shape (examples,); 0 is not used.
        truth: the true classes, of shape (examples,); -1 is unknown.

    >>> pseudo_label_quality(labels=[0, 1, 1, 2], weights=[1, 1, 0, 1], truth=[0, 0, 1, -1])
    PseudoLabelQuality(coverage=0.75, precision=0.5)
    """
    pseudo, used, y = _checked(labels, weights, truth)
    known = used * (y >= 0)
    return PseudoLabelQuality(float(used.mean()), float((known * (pseudo == y)).sum() / known.sum()))


def pseudo_label_quality_per_class(labels: Values, weights: Values, truth: Values, classes: int) -> ClassQuality:
    """The same for each pseudo class; NaN where a class has no example of known truth.

    >>> pseudo_label_quality_per_class([0, 1, 1], [1, 1, 0], [0, 0, 1], classes=2).precision.tolist()
    [1.0, 0.0]
    """
    classes = check_integer("classes", classes)
    pseudo, used, y = _checked(labels, weights, truth, classes)
    known = used * (y >= 0)

    def total(values: Tensor) -> Tensor:
        return torch.bincount(pseudo, values, minlength=classes)

    count = total(torch.ones_like(used))
    return ClassQuality(count, total(used) / count, total(known * (pseudo == y)) / total(known))


def _checked(labels: Values, weights: Values, truth: Values, classes: int | None = None) -> tuple[Tensor, ...]:
    pseudo = class_numbers("labels", labels, classes=classes)
    y = class_numbers("truth", truth, low=-1, classes=classes)
    used = numbers("weights", weights)
    same_length(labels=pseudo, weights=used, truth=y)
    if (used < 0).any() or used.isinf().any():
        raise UserError("weights must be finite and at least 0; 0 leaves an example out")
    return pseudo, used, y
