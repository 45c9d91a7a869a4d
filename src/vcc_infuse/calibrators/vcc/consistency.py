"""How stable a prediction is: under dropout (ensemble), over time (temporal) and between two networks (view).

The three scores of VCC (Fang et al., IJCAI 2024), each 0 for a prediction that never wavers. None has a gradient.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from ...types import Outputs

TINY = 1e-7


Head = Callable[[Tensor], Tensor]


def entropy(probs: Tensor) -> Tensor:
    """Entropy of each row, in nats."""
    return -(probs * probs.clamp_min(TINY).log()).sum(-1)


def kl(probs: Tensor, other: Tensor) -> Tensor:
    """Kullback-Leibler divergence of `other` from `probs`, row by row; probabilities below 1e-7 count as 1e-7."""
    return (probs * (probs.clamp_min(TINY).log() - other.clamp_min(TINY).log())).sum(-1).clamp_min(0)


@torch.no_grad()
def ensemble_score(head: Head, features: Tensor, copies: int, dropout: float) -> Tensor:
    """Entropy of the mean prediction of `copies` heads with dropout, asked in one call."""
    clones = F.dropout(features.detach().repeat(copies, 1), dropout)
    logits = head(clones).float()
    return entropy(logits.softmax(1).unflatten(0, (copies, len(features))).mean(0))


@torch.no_grad()
def temporal_score(probs: Tensor, before: Tensor, known: Tensor) -> Tensor:
    """Divergence from what was said `before`; NaN, which means no score, where that is not `known`."""
    return torch.where(known, kl(probs, before), torch.nan)


@torch.no_grad()
def view_score(outputs: Outputs, ema_outputs: Outputs, head: Head, ema_head: Head) -> Tensor:
    """Divergence between two networks that swapped their heads, which widens the difference between the views."""
    crossed = ema_head(outputs.features.detach()).float().softmax(1)
    return kl(crossed, head(ema_outputs.features).float().softmax(1))
