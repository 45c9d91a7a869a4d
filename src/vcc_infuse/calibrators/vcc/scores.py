"""How stable a prediction is, and the target confidence r̃ that VCC (Fang et al., IJCAI 2024) makes of it.

The three consistency scores (ensemble: under dropout, temporal: over time, view: between two networks) are 0 for a
perfectly stable prediction and have no gradient. They are normalized, fused and interpolated within the pseudo class.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...utils.device import class_counts

TINY = 1e-7

Head = Callable[[Tensor], Tensor]
"""Maps features (batch, width) to logits (batch, classes)."""


def entropy(probs: Tensor) -> Tensor:
    """Entropy −Σ p log p of each row, in nats.

    Args:
        probs: (…, classes), each row sums to one.

    Returns:
        (…)

    Example:
        >>> entropy(torch.tensor([[0.5, 0.5], [0.9, 0.1]]))
        tensor([0.6931, 0.3251])
    """
    return -(probs * probs.clamp_min(TINY).log()).sum(-1)


def kl(probs: Tensor, other: Tensor) -> Tensor:
    """Kullback-Leibler divergence KL(probs ‖ other) = Σ p log(p/q) of each row; the logarithms take at least 1e-7.

    Args:
        probs: (…, classes), each row sums to one.
        other: (…, classes), each row sums to one.

    Returns:
        (…), at least 0.

    Example:
        >>> kl(torch.tensor([[0.5, 0.5], [0.9, 0.1]]), torch.tensor([[0.5, 0.5], [0.5, 0.5]]))
        tensor([0.0000, 0.3681])
    """
    return (probs * (probs.clamp_min(TINY).log() - other.clamp_min(TINY).log())).sum(-1).clamp_min(0)


@torch.no_grad()
def ensemble_score(features: Tensor, head: nn.Linear, *, mc_samples: int = 8, dropout: float = 0.3) -> Tensor:
    """Entropy of the mean prediction of `mc_samples` heads, each with a random part of its inputs dropped.

    All rows of a batch share the same heads. Dropping other inputs for every row gives each score the same
    distribution, but on small networks drawing random numbers would be most of a step.

    Args:
        features: (batch, width), the inputs of the head.
        head: the classifier's last layer.
        mc_samples: number of heads.
        dropout: fraction of the inputs that each of them drops.

    Returns:
        (batch,), from 0 to log(classes).

    Example:
        >>> head = nn.Linear(2, 2, bias=False)
        >>> _ = nn.init.eye_(head.weight)
        >>> ensemble_score(torch.tensor([[9.0, 0.0], [1.0, 1.0]]), head, dropout=0.0)
        tensor([0.0012, 0.6931])
    """
    kept = F.dropout(torch.ones(mc_samples, 1, features.shape[1], device=features.device), dropout)
    weights = (kept * head.weight).flatten(0, 1)  # of all heads, for one product
    # With the batch last: a CPU computes the softmax of many short rows ten times as fast across them.
    logits = F.linear(weights.to(features.dtype), features.detach()).float().view(mc_samples, -1, len(features))
    logits = logits if head.bias is None else logits + head.bias[:, None]
    return entropy(logits.softmax(1).mean(0).T)


@torch.no_grad()
def temporal_score(probs: Tensor, past: Tensor, known: Tensor) -> Tensor:
    """Divergence KL(probs ‖ past) from an earlier prediction; NaN, which means no score, where none is known.

    Args:
        probs: (batch, classes), the present prediction.
        past: (batch, classes), the earlier one.
        known: (batch,), whether there is an earlier one.

    Returns:
        (batch,)

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.9, 0.1]])
        >>> temporal_score(probs, torch.full((2, 2), 0.5), torch.tensor([True, False]))
        tensor([0.3681,    nan])
    """
    return torch.where(known, kl(probs, past), torch.nan)


@torch.no_grad()
def view_score(features: Tensor, ema_features: Tensor, head: Head, ema_head: Head) -> Tensor:
    """Divergence between two networks with swapped heads, which amplifies the difference between them.

    KL(softmax(ema_head(features)) ‖ softmax(head(ema_features)))

    Args:
        features: (batch, width), of the network.
        ema_features: (batch, width), of its moving average.
        head: the network's last layer.
        ema_head: the last layer of the average.

    Returns:
        (batch,)

    Example:
        >>> head = nn.Linear(3, 2)
        >>> same = torch.randn(4, 3)
        >>> view_score(same, same, head, head)
        tensor([0., 0., 0., 0.])
    """
    crossed = ema_head(features.detach()).float().softmax(1)
    return kl(crossed, head(ema_features).float().softmax(1))


Fusion = Literal["corrected", "minus_square", "printed"]


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
    """Instability s of normalized scores s₁ … sₙ and confidence c; a missing score does not count.

    Args:
        scores: (batch, scores), in 0…1 or NaN.
        confidence: (batch,), the softmax confidence c.
        fusion: "corrected" is mean(s₁², …, sₙ², (1 − c)²). "printed" has c² in place of (1 − c)² as in the paper: a
            confident prediction then counts as unstable. "minus_square" has −c², the printed sum with one sign
            changed; a missing score is there the mean of the others, because the mean with −c² could be negative.

    Returns:
        (batch,), 0 (stable) to 1; −1 to 1 with "minus_square".

    Example:
        >>> fuse(torch.tensor([[0.0, 0.6], [torch.nan, 0.6]]), torch.tensor([1.0, 1.0]))
        tensor([0.1200, 0.1800])
    """
    if fusion == "minus_square":
        count = scores.shape[1]
        squares = scores.square().nanmean(1).nan_to_num(0)
        return (count * squares - confidence.square()) / (count + 1)
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


def target_confidence(
    rows: Rows, queue: Rows, classes: int, *, fusion: Fusion, min_per_class: int, normalize_confidence: bool = False
) -> Tensor:
    """Normalize, fuse and interpolate: the target r̃ of `rows`, given the queue."""

    def instability(some: Rows) -> Tensor:
        confidence = some.confidence
        if normalize_confidence:
            confidence = normalize_scores(confidence[:, None], queue.confidence[:, None])[:, 0]
        return fuse(normalize_scores(some.scores, queue.scores), confidence, fusion=fusion)

    return interpolate(
        instability(rows),
        rows.confidence,
        rows.labels,
        queue_instability=instability(queue),
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
