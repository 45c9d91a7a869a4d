"""The gradient on the support set, which replaces a validation set: feature-level Mixup of labeled examples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..head_gradients import mean_gradient


class SupportGradient(NamedTuple):
    """Gradients of the support loss: in the head, classes × (width + 1), and in each support example's feature.

    `chunks` yields the row numbers and the network's inputs of these examples.
    """

    head: Tensor
    features: Tensor
    chunks: Iterator[tuple[np.ndarray, Tensor]]


class FeatureMixup:
    """One Mixup draw over the whole labeled set: each row is mixed with a random partner, λ ~ Beta(1, 1)."""

    def __init__(self, count: int, rng: np.random.Generator, device: torch.device | str = "cpu") -> None:
        self.partner = torch.from_numpy(rng.permutation(count)).to(device)
        self.lam = torch.from_numpy(rng.random(count)).float().to(device)[:, None]

    def __call__(self, rows: Tensor) -> Tensor:
        """λ · row + (1 − λ) · partner, for features and for one-hot labels."""
        return torch.lerp(rows[self.partner], rows, self.lam)

    def backward(self, gradient: Tensor) -> Tensor:
        """The gradient in the original rows, given the gradient in the mixed rows."""
        own = self.lam * gradient
        return own.index_add(0, self.partner, (1 - self.lam) * gradient)


def support_gradient(
    head: nn.Linear, features: Tensor, y: Tensor, draws: int, rng: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """Gradients of the Mixup loss averaged over `draws` draws: in the head, and in each labeled feature."""
    truth = F.one_hot(y, head.out_features).float()
    direction = torch.zeros(head.out_features, head.in_features + 1, device=features.device)
    back = torch.zeros_like(features)
    weight = head.weight.detach().float()
    bias = torch.zeros(head.out_features, device=weight.device) if head.bias is None else head.bias.detach().float()
    for _ in range(draws):
        mix = FeatureMixup(len(y), rng, features.device)
        mixed = mix(features)
        errors = F.linear(mixed, weight, bias).softmax(1) - mix(truth)
        direction += mean_gradient(errors, mixed) / draws
        back += mix.backward(errors @ weight) / (len(y) * draws)
    return direction, back
