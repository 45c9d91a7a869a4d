"""How stable a prediction is: under dropout (ensemble), over time (temporal) and between two networks (view).

The three scores of VCC (Fang et al., IJCAI 2024), each 0 for a perfectly stable prediction. None has a gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ...types import Outputs

TINY = 1e-7

Head = Callable[[Tensor], Tensor]


def entropy(probs: Tensor) -> Tensor:
    """Entropy of each row, in nats."""
    return -(probs * probs.clamp_min(TINY).log()).sum(-1)


def kl(probs: Tensor, other: Tensor) -> Tensor:
    """Kullback-Leibler divergence KL(probs ‖ other) of each row; the logarithms take at least 1e-7."""
    return (probs * (probs.clamp_min(TINY).log() - other.clamp_min(TINY).log())).sum(-1).clamp_min(0)


@torch.no_grad()
def ensemble_score(head: Head, features: Tensor, mc_samples: int, dropout: float) -> Tensor:
    """Entropy of the mean prediction of `mc_samples` dropout samples, computed in one call of the head."""
    probs = head(dropout_samples(features.detach(), mc_samples, dropout)).float().softmax(1)
    return entropy(probs.view(mc_samples, len(features), -1).mean(0))


def dropout_samples(features: Tensor, count: int, rate: float) -> Tensor:
    """`count` copies of the rows, each feature dropped with probability `rate` (in steps of 1/65,536).

    Four features share a random number of 64 bits: with F.dropout, random numbers are most of a step on small networks.
    """
    size = count * features.numel()
    draws = torch.empty(math.ceil(size / 4), dtype=torch.long, device=features.device).random_(-(2**63), None)
    kept = draws.view(torch.int16)[:size] >= round(rate * 2**16) - 2**15
    return torch.where(kept.view(count, *features.shape), features / (1 - rate), 0.0).flatten(0, 1)


@torch.no_grad()
def temporal_score(probs: Tensor, before: Tensor, known: Tensor) -> Tensor:
    """Divergence from the prediction `before`; NaN, which means no score, where that is not `known`."""
    return torch.where(known, kl(probs, before), torch.nan)


@torch.no_grad()
def view_score(outputs: Outputs, ema_outputs: Outputs, head: Head, ema_head: Head) -> Tensor:
    """Divergence between two networks with swapped heads, which amplifies the difference between them."""
    crossed = ema_head(outputs.features.detach()).float().softmax(1)
    return kl(crossed, head(ema_outputs.features).float().softmax(1))
