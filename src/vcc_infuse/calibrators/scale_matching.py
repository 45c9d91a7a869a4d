"""A monotone map within each pseudo class: keep the order of one score, take the distribution of another.

A regressor shrinks toward its mean, so whole classes can fall below a fixed threshold and never be selected. Matched
class by class, each class keeps as many examples above any threshold as the reference has; only their choice changes.
Matched to the reference of all classes together, the total is the same and every class keeps the same fraction, so a
class with low confidence is still selected.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..utils.device import class_counts
from ..utils.ring_buffer import RingBuffer

_STRIDE = 2**32
_UNIT = 2.0**31
LEAST_SHARE = 1e-6


class ScaleMatching(nn.Module):
    """Maps a score to the scale of the softmax confidence, by the last `size` examples.

    `match` "balanced" takes the scale of all classes together, "confidence" that of each class, "none" changes nothing.
    A class's scores are changed once there are `min_per_class` examples of it. With `shares` (classes,), "balanced"
    counts what is selected of a class against its share of all examples, not against those predicted to be of it.
    """

    def __init__(
        self, match: str, *, classes: int, size: int, min_per_class: int, shares: Tensor | None = None
    ) -> None:
        super().__init__()
        self.match = match
        self.classes = classes
        self.min_per_class = min_per_class
        self.expected = None if shares is None else nn.Buffer(shares, persistent=False)  # only training needs them
        numbers = dict.fromkeys(("score", "confidence"), ((), torch.float32))
        self.memory = RingBuffer(size, {"labels": ((), torch.long), **numbers})
        self.ordered = nn.Buffer(torch.zeros(size, dtype=torch.long))
        self.reference = nn.Buffer(torch.zeros(size))
        self.counts = nn.Buffer(torch.zeros(classes + 1, dtype=torch.long))  # rows not yet filled are a class

    @torch.no_grad()
    def observe(self, gather: Callable[[Tensor], Tensor], **columns: Tensor) -> None:
        """Remember `score`, `confidence` and `labels` of a batch, each (batch,), of all processes."""
        self.memory.push(**{name: gather(column) for name, column in columns.items()})
        valid = self.memory.valid
        reference = torch.where(valid, self.memory["confidence"], torch.inf)
        labels = torch.where(valid, self.memory["labels"], self.classes)
        queue = Queue.of(self.memory["score"], reference, labels, len(self.counts), pooled=self.match == "balanced")
        for buffer, column in zip((self.ordered, self.reference, self.counts), queue, strict=True):
            buffer.copy_(column)

    def forward(self, score: Tensor, confidence: Tensor, labels: Tensor) -> Tensor:
        """`score` on the new scale; the softmax `confidence` where too few examples of the class are known."""
        enough = self.counts[labels] >= max(self.min_per_class, 1)
        queue = Queue(self.ordered, self.reference, self.counts)
        if self.match == "balanced":
            score = match_pooled(score, labels, queue, self.expected)
        elif self.match == "confidence":
            score = match_classwise(score, labels, queue)
        return torch.where(enough, score, confidence)


class Queue(NamedTuple):
    """Recent examples in order, which is found once for all batches that are compared with them."""

    ordered: Tensor  # keys of the scores, by class and then by score
    reference: Tensor  # the other score in order, within each class or of all classes together
    counts: Tensor  # examples of each class

    @classmethod
    def of(cls, scores: Tensor, reference: Tensor, labels: Tensor, classes: int, *, pooled: bool) -> Queue:
        """From columns in any order; of entries that do not count, the reference is infinite."""
        by_class = in_order(reference) if pooled else reference[_keys(reference.clamp(max=1), labels).argsort()]
        return cls(in_order(_keys(scores, labels)), by_class, class_counts(labels, classes))

    def ranks(self, values: Tensor, labels: Tensor) -> Tensor:
        """Rank of each value (0…1) among the values of its class, from 0; ties get their middle rank."""
        last = self.counts[labels] - 1
        keys = _keys(values, labels)
        below = torch.searchsorted(self.ordered, keys)
        upto = torch.searchsorted(self.ordered, keys, right=True)
        return ((below + upto - 1) / 2 - self.start[labels]).clamp_min(0).minimum(last.clamp_min(0).float())

    @property
    def start(self) -> Tensor:
        """The place of the first example of each class."""
        return self.counts.cumsum(0) - self.counts


def match_classwise(values: Tensor, labels: Tensor, queue: Queue) -> Tensor:
    """The entry of a class's sorted `reference` at each value's rank in that class; NaN if the queue has none."""
    matched = _interpolated(queue.reference, queue.start[labels], queue.ranks(values, labels))
    return torch.where(queue.counts[labels] > 0, matched, torch.nan)


def match_pooled(values: Tensor, labels: Tensor, queue: Queue, shares: Tensor | None = None) -> Tensor:
    """The same with the sorted `reference` of all classes together.

    With `shares`, the k-th best of a class of share s gets the confidence that k / s entries of the reference exceed.
    """
    count = queue.counts[labels]
    total = queue.reference.isfinite().sum()
    rank = queue.ranks(values, labels)
    if shares is None:
        position = (rank + 0.5) / count.clamp_min(1) * total
    else:
        position = total - (count - rank - 0.5) / shares[labels].clamp_min(LEAST_SHARE)
    position = (position - 0.5).clamp_min(0).minimum((total - 1).clamp_min(0).float())
    matched = _interpolated(queue.reference, torch.zeros_like(labels), position)
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
