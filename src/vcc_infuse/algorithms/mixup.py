"""MixUp (Zhang et al., ICLR 2018) as in MixMatch: blend each example with a random other one of smaller weight."""

from __future__ import annotations

import torch
from torch import Tensor

from ..models.classifier import frozen_statistics
from ..types import Step


def mixup(inputs: Tensor, targets: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """λ·(own) + (1−λ)·(other) for inputs and targets, with one λ ≥ ½ from Beta(α, α); α = 0 mixes nothing."""
    lam = sample_lambda(alpha)
    others = torch.randperm(len(inputs)).to(inputs.device)
    return lam * inputs + (1 - lam) * inputs[others], lam * targets + (1 - lam) * targets[others]


def sample_lambda(alpha: float) -> float:
    """max(λ, 1 − λ) with λ from Beta(α, α)."""
    if alpha == 0:
        return 1.0
    lam = torch.distributions.Beta(alpha, alpha).sample().item()
    return max(lam, 1 - lam)


def interleaved_forward(step: Step, inputs: Tensor, size: int) -> Tensor:
    """Logits computed in chunks of `size` rows; only the first chunk updates the BatchNorm statistics.

    Row i goes to chunk i mod k, so that each chunk holds labeled and unlabeled rows and normalizes them together.
    """
    count = len(inputs) // size
    (first,) = step.forward(inputs[::count])
    with frozen_statistics(step.model):
        rest = [step.forward(inputs[start::count])[0] for start in range(1, count)]
    return torch.stack([outputs.logits for outputs in (first, *rest)], 1).flatten(0, 1)
