"""From consistency scores to the target confidence r̃ of VCC: normalize, fuse, interpolate within the pseudo class.

`vcc_infuse.functional` exports the three steps.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ...utils.device import class_counts

Fusion = Literal["corrected", "printed"]


class Rows(NamedTuple):
    """Examples of the score memory: scores (one column each, NaN = none), softmax confidence, pseudo label."""

    scores: Tensor
    confidence: Tensor
    labels: Tensor


def normalize_scores(scores: Tensor, queue: Tensor) -> Tensor:
    """Scale each column to 0…1 by its extremes in the queue; 0 if the column has no spread; NaN stays NaN.

    Args:
        scores: (batch, scores), NaN where an example has no such score.
        queue: (queue, scores), the same of recent examples.

    Returns:
        (batch, scores)

    Example:
        >>> normalize_scores(torch.tensor([[1.0], [3.0]]), torch.tensor([[0.0], [2.0], [torch.nan]]))
        tensor([[0.5000],
                [1.0000]])
    """
    low = torch.where(queue.isnan(), torch.inf, queue).amin(0)
    high = torch.where(queue.isnan(), -torch.inf, queue).amax(0)
    spread = high - low
    return torch.where(spread > 0, ((scores - low) / spread).clamp(0, 1), torch.where(scores.isnan(), scores, 0))


def fuse(scores: Tensor, confidence: Tensor, *, fusion: Fusion = "corrected") -> Tensor:
    """Instability s = mean(s₁², …, sₙ², (1 − c)²) of normalized scores and confidence; a missing score does not count.

    Args:
        scores: (batch, scores), in 0…1 or NaN.
        confidence: (batch,), the softmax confidence c.
        fusion: "corrected", or "printed", which squares c itself as in the paper: a confident prediction then counts
            as unstable.

    Returns:
        (batch,), 0 (stable) to 1.

    Example:
        >>> fuse(torch.tensor([[0.0, 0.6], [torch.nan, 0.6]]), torch.tensor([1.0, 1.0]))
        tensor([0.1200, 0.1800])
    """
    doubt = 1 - confidence if fusion == "corrected" else confidence
    terms = torch.cat([scores, doubt[:, None]], 1).square()
    return terms.nanmean(1)


def interpolate(
    instability: Tensor,
    confidence: Tensor,
    labels: Tensor,
    *,
    queue_instability: Tensor,
    queue_confidence: Tensor,
    queue_labels: Tensor,
    classes: int,
    min_per_class: int = 1,
) -> Tensor:
    """The target r̃: the most stable example of a pseudo class gets its highest confidence, the least stable its lowest.

    r̃ = (s_max − s) / (s_max − s_min) · (c_max − c_min) + c_min, with the extremes of the class in the queue.

    Args:
        instability: (batch,), the s of `fuse`.
        confidence: (batch,), softmax confidence c, which stays where the class has too few examples or no spread.
        labels: (batch,), pseudo labels.
        queue_instability: (queue,), of recent examples.
        queue_confidence: (queue,)
        queue_labels: (queue,)
        classes: number of classes.
        min_per_class: examples of a class that the queue must hold.

    Returns:
        (batch,)

    Example:
        >>> recent = dict(
        ...     queue_instability=torch.tensor([0.0, 0.8]), queue_confidence=torch.tensor([0.5, 0.9]),
        ...     queue_labels=torch.tensor([1, 1]), classes=2,
        ... )
        >>> interpolate(torch.tensor([0.2, 0.2]), torch.tensor([0.7, 0.7]), torch.tensor([1, 0]), **recent)
        tensor([0.8000, 0.7000])
    """
    best, worst = (extreme[labels] for extreme in class_extremes(queue_instability, queue_labels, classes))
    low, high = (extreme[labels] for extreme in class_extremes(queue_confidence, queue_labels, classes))
    enough = class_counts(queue_labels, classes)[labels] >= max(min_per_class, 1)
    stability = ((worst - instability) / (worst - best)).clamp(0, 1)
    return torch.where(enough & (worst > best), stability * (high - low) + low, confidence)


def target_confidence(rows: Rows, queue: Rows, classes: int, *, fusion: Fusion, min_per_class: int) -> Tensor:
    """Normalize, fuse and interpolate: the target r̃ of `rows`, given the queue."""
    return interpolate(
        fuse(normalize_scores(rows.scores, queue.scores), rows.confidence, fusion=fusion),
        rows.confidence,
        rows.labels,
        queue_instability=fuse(normalize_scores(queue.scores, queue.scores), queue.confidence, fusion=fusion),
        queue_confidence=queue.confidence,
        queue_labels=queue.labels,
        classes=classes,
        min_per_class=min_per_class,
    )


def class_extremes(values: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Smallest and largest value of each class (infinities for an empty class)."""
    low = torch.full((classes,), torch.inf, device=values.device).scatter_reduce(0, labels, values, "amin")
    high = torch.full((classes,), -torch.inf, device=values.device).scatter_reduce(0, labels, values, "amax")
    return low, high
