"""How stable a prediction is: under dropout (ensemble), over time (temporal) and between two networks (view).

The three consistency scores of VCC (Fang et al., IJCAI 2024), each 0 for a perfectly stable prediction. None has a
gradient. `vcc_infuse.functional` exports them.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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
    logits = F.linear(features.detach(), weights.to(features.dtype)).float().view(len(features), mc_samples, -1)
    logits = logits if head.bias is None else logits + head.bias
    return entropy(logits.softmax(-1).mean(1))


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
