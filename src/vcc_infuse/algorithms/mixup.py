"""MixUp (Zhang et al., ICLR 2018) as MixMatch uses it: blend every example with a random other, itself dominant."""

from __future__ import annotations

import torch
from torch import Tensor

from ..models.classifier import frozen_statistics
from ..types import Step


def mixup(inputs: Tensor, targets: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """λ·(own) + (1−λ)·(other) for inputs and targets, with one λ ≥ ½ from Beta(α, α); α = 0 mixes nothing."""
    share = own_share(alpha)
    others = torch.randperm(len(inputs)).to(inputs.device)
    return share * inputs + (1 - share) * inputs[others], share * targets + (1 - share) * targets[others]


def own_share(alpha: float) -> float:
    """λ: the larger part of a Beta(α, α) cut."""
    if alpha == 0:
        return 1.0
    cut = torch.distributions.Beta(alpha, alpha).sample().item()
    return max(cut, 1 - cut)


def interleaved_forward(step: Step, inputs: Tensor, size: int) -> Tensor:
    """Logits by chunks of `size` rows, each a cross-section of `inputs`; only the first moves the statistics.

    Row i goes to chunk i mod k, so that labeled and unlabeled rows share the statistics they are normalized by.
    """
    count = len(inputs) // size
    (first,) = step.forward(inputs[::count])
    with frozen_statistics(step.model):
        rest = [step.forward(inputs[start::count])[0] for start in range(1, count)]
    return torch.stack([outputs.logits for outputs in (first, *rest)], 1).flatten(0, 1)
