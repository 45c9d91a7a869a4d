"""How stable a prediction is: under dropout (ensemble), over time (temporal) and between two networks (view).

The three scores of VCC (Fang et al., IJCAI 2024), each 0 for a perfectly stable prediction. None has a gradient.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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
def ensemble_score(head: nn.Linear, features: Tensor, mc_samples: int, dropout: float) -> Tensor:
    """Entropy of the mean prediction of `mc_samples` heads, each with a random part of its inputs dropped.

    The rows of a batch share the heads. Dropping other inputs for every row has the same distribution of each score,
    but on small networks random numbers would be most of a step.
    """
    kept = F.dropout(torch.ones(mc_samples, 1, features.shape[1], device=features.device), dropout)
    weights = (kept * head.weight).flatten(0, 1)  # of all heads, for one product
    logits = F.linear(features.detach(), weights.to(features.dtype)).float().view(len(features), mc_samples, -1)
    logits = logits if head.bias is None else logits + head.bias
    return entropy(logits.softmax(-1).mean(1))


@torch.no_grad()
def temporal_score(probs: Tensor, before: Tensor, known: Tensor) -> Tensor:
    """Divergence from the prediction `before`; NaN, which means no score, where that is not `known`."""
    return torch.where(known, kl(probs, before), torch.nan)


@torch.no_grad()
def view_score(outputs: Outputs, ema_outputs: Outputs, head: Head, ema_head: Head) -> Tensor:
    """Divergence between two networks with swapped heads, which amplifies the difference between them."""
    crossed = ema_head(outputs.features.detach()).float().softmax(1)
    return kl(crossed, head(ema_outputs.features).float().softmax(1))
