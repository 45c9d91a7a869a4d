"""From consistency scores to a confidence: normalize by the queue, fuse, interpolate within the pseudo class."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ...utils.device import class_counts


class Rows(NamedTuple):
    """Examples of the score memory: scores (one column each, NaN = none), softmax confidence, pseudo label."""

    scores: Tensor
    confidence: Tensor
    labels: Tensor


def normalize(scores: Tensor, queue: Tensor) -> Tensor:
    """Each column scaled to 0…1 by its extremes in the queue; 0 if the column has no spread; NaN stays NaN."""
    low = torch.where(queue.isnan(), torch.inf, queue).amin(0)
    high = torch.where(queue.isnan(), -torch.inf, queue).amax(0)
    spread = high - low
    return torch.where(spread > 0, ((scores - low) / spread).clamp(0, 1), torch.where(scores.isnan(), scores, 0))


def fuse(scores: Tensor, confidence: Tensor, fusion: str = "corrected") -> Tensor:
    """Instability 0…1: mean square of the normalized scores and of 1 − confidence; a missing score does not count.

    "printed" squares the confidence itself, as in the paper, so that a confident prediction counts as unstable.
    """
    doubt = 1 - confidence if fusion == "corrected" else confidence
    terms = torch.cat([scores, doubt[:, None]], 1).square()
    return terms.nanmean(1)


def class_extremes(values: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Smallest and largest value of each class (infinities for an empty class)."""
    low = torch.full((classes,), torch.inf, device=values.device).scatter_reduce(0, labels, values, "amin")
    high = torch.full((classes,), -torch.inf, device=values.device).scatter_reduce(0, labels, values, "amax")
    return low, high


def interpolate(rows: Rows, queue: Rows, classes: int, fusion: str = "corrected", min_per_class: int = 1) -> Tensor:
    """The target r̃: the stablest example of a pseudo class gets its highest confidence, the least stable its lowest.

    If the queue holds fewer than `min_per_class` examples of a class, or no spread, the softmax confidence stays.
    """
    scores = fuse(normalize(queue.scores, queue.scores), queue.confidence, fusion)
    own = fuse(normalize(rows.scores, queue.scores), rows.confidence, fusion)
    best, worst = (x[rows.labels] for x in class_extremes(scores, queue.labels, classes))
    low, high = (x[rows.labels] for x in class_extremes(queue.confidence, queue.labels, classes))
    enough = class_counts(queue.labels, classes)[rows.labels] >= max(min_per_class, 1)
    stability = ((worst - own) / (worst - best)).clamp(0, 1)
    return torch.where(enough & (worst > best), stability * (high - low) + low, rows.confidence)
