"""A monotone map within each pseudo class: keep the order of one score, take the distribution of another.

A regressor shrinks toward its mean, so whole classes can fall below a fixed threshold and never be selected. Matched
class by class, each class keeps as many examples above any threshold as the reference has; only their choice changes.
Matched to the reference of all classes together, the total is the same and every class keeps the same fraction, so a
class with low confidence is still selected.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from ..utils.device import class_counts
from ..utils.ring_buffer import RingBuffer

_STRIDE = 2**32
_UNIT = 2.0**31


class ScaleMatching(nn.Module):
    """Maps a score to the scale of the softmax confidence, by the last `size` examples.

    `match` "balanced" takes the scale of all classes together, "confidence" that of each class, "none" changes nothing.
    A class's scores are changed once there are `min_per_class` examples of it.
    """

    def __init__(self, match: str, *, classes: int, size: int, min_per_class: int) -> None:
        super().__init__()
        self.match = match
        self.classes = classes
        self.min_per_class = min_per_class
        numbers = dict.fromkeys(("score", "confidence"), ((), torch.float32))
        self.memory = RingBuffer(size, {"labels": ((), torch.long), **numbers})

    def observe(self, gather: Callable[[Tensor], Tensor], **columns: Tensor) -> None:
        """Remember `score`, `confidence` and `labels` of a batch, each (batch,), of all processes."""
        self.memory.push(**{name: gather(column) for name, column in columns.items()})

    def forward(self, score: Tensor, confidence: Tensor, labels: Tensor) -> Tensor:
        """`score` on the new scale; the softmax `confidence` where too few examples of the class are known."""
        valid = self.memory.valid
        past = self.memory["score"]
        reference = self.memory["confidence"]
        classes = self.classes + 1  # rows not yet filled are a class of their own
        known = torch.where(valid, self.memory["labels"], self.classes)
        enough = class_counts(known, classes)[labels] >= max(self.min_per_class, 1)
        if self.match == "balanced":
            score = match_pooled(score, labels, past, torch.where(valid, reference, torch.nan), known, classes)
        elif self.match == "confidence":
            score = match_classwise(score, labels, past, reference, known, classes)
        return torch.where(enough, score, confidence)


def class_ranks(values: Tensor, labels: Tensor, queue: Tensor, queue_labels: Tensor, classes: int) -> Tensor:
    """Rank of each value (0…1) among the queue's values of its class, from 0; ties get their middle rank."""
    counts = class_counts(queue_labels, classes)
    start = (counts.cumsum(0) - counts)[labels]
    last = counts[labels] - 1
    ordered = in_order(_keys(queue, queue_labels))
    keys = _keys(values, labels)
    below = torch.searchsorted(ordered, keys)
    upto = torch.searchsorted(ordered, keys, right=True)
    return ((below + upto - 1) / 2 - start).clamp_min(0).minimum(last.clamp_min(0).float())


def match_classwise(
    values: Tensor, labels: Tensor, queue: Tensor, reference: Tensor, queue_labels: Tensor, classes: int
) -> Tensor:
    """The entry of a class's sorted `reference` at each value's rank in that class; NaN if the queue has none."""
    rank = class_ranks(values, labels, queue, queue_labels, classes)
    counts = class_counts(queue_labels, classes)
    ordered = reference[_keys(reference, queue_labels).argsort()]
    matched = _interpolated(ordered, (counts.cumsum(0) - counts)[labels], rank)
    return torch.where(counts[labels] > 0, matched, torch.nan)


def match_pooled(
    values: Tensor, labels: Tensor, queue: Tensor, reference: Tensor, queue_labels: Tensor, classes: int
) -> Tensor:
    """The same with the sorted `reference` of the whole queue, whose NaN entries do not count."""
    rank = class_ranks(values, labels, queue, queue_labels, classes)
    count = class_counts(queue_labels, classes)[labels]
    total = (~reference.isnan()).sum()
    position = ((rank + 0.5) / count.clamp_min(1) * total - 0.5).clamp_min(0).minimum((total - 1).clamp_min(0).float())
    matched = _interpolated(in_order(reference), torch.zeros_like(labels), position)
    return torch.where(count > 0, matched, torch.nan)


def in_order(values: Tensor) -> Tensor:
    """Values sorted along the last dimension, NaN last: on the CPU by NumPy, which is 2 to 30 times faster."""
    if values.device.type != "cpu":
        return values.sort().values
    return torch.from_numpy(np.sort(values.detach().numpy()))


def _interpolated(values: Tensor, start: Tensor, rank: Tensor) -> Tensor:
    """Linear interpolation of `values` at start + rank."""
    floor = rank.floor().long()
    low, high = (values[(start + i).clamp(max=len(values) - 1)] for i in (floor, rank.ceil().long()))
    return torch.lerp(low, high, rank - floor)


def _keys(values: Tensor, labels: Tensor) -> Tensor:
    """Integers that sort by class first, then by value: one sort serves all classes."""
    return labels * _STRIDE + (values.float() * _UNIT).long()
