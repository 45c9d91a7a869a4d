"""A monotone map within each pseudo class: keep the order of one score, take the distribution of another.

A regressor shrinks towards its mean, so that whole classes can fall below a fixed threshold and die out. Mapped
class by class, each class keeps as many examples above any threshold as the reference has, and only their choice
changes. Mapped to the reference of all classes together, as many are kept in all, and of each class the same share:
a class the classifier is shy of does not starve.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .fusion import class_counts

_STRIDE, _UNIT = 2**32, 2.0**31


def class_places(values: Tensor, labels: Tensor, queue: Tensor, queue_labels: Tensor, classes: int) -> Tensor:
    """Where each value (0…1) stands among the queue's values of its class, from 0; equals share their middle."""
    counts = class_counts(queue_labels, classes)
    start, last = (counts.cumsum(0) - counts)[labels], counts[labels] - 1
    ranks, own = _keys(queue, queue_labels).sort().values, _keys(values, labels)
    below, upto = torch.searchsorted(ranks, own), torch.searchsorted(ranks, own, right=True)
    return ((below + upto - 1) / 2 - start).clamp_min(0).minimum(last.clamp_min(0).float())


def match_classwise(
    values: Tensor, labels: Tensor, queue: Tensor, reference: Tensor, queue_labels: Tensor, classes: int
) -> Tensor:
    """Each value's place in its class, read off the sorted `reference` of that class; NaN where the queue has none."""
    place = class_places(values, labels, queue, queue_labels, classes)
    counts = class_counts(queue_labels, classes)
    heights = reference[_keys(reference, queue_labels).argsort()]
    read = _between(heights, (counts.cumsum(0) - counts)[labels], place)
    return torch.where(counts[labels] > 0, read, torch.nan)


def match_pooled(
    values: Tensor, labels: Tensor, queue: Tensor, reference: Tensor, queue_labels: Tensor, classes: int
) -> Tensor:
    """The same, read off the sorted `reference` of the whole queue; its NaN entries do not count."""
    place = class_places(values, labels, queue, queue_labels, classes)
    count = class_counts(queue_labels, classes)[labels]
    total = (~reference.isnan()).sum()
    spot = ((place + 0.5) / count.clamp_min(1) * total - 0.5).clamp_min(0).minimum((total - 1).clamp_min(0).float())
    read = _between(reference.sort().values, torch.zeros_like(labels), spot)
    return torch.where(count > 0, read, torch.nan)


def _between(heights: Tensor, start: Tensor, place: Tensor) -> Tensor:
    """Linear interpolation of `heights` at start + place."""
    floor = place.floor().long()
    low, high = (heights[(start + i).clamp(max=len(heights) - 1)] for i in (floor, place.ceil().long()))
    return torch.lerp(low, high, place - floor)


def _keys(values: Tensor, labels: Tensor) -> Tensor:
    """Integers that sort by class first, then by value: one sort serves all classes."""
    return labels * _STRIDE + (values.float() * _UNIT).long()
