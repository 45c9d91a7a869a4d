"""The gradient that stands for the validation set's: feature-level Mixup of labeled examples, averaged over draws."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..head_gradients import mean_gradient


class Mixed:
    """One Mixup draw over the whole labeled set: each row meets a random partner, λ ~ Beta(1, 1)."""

    def __init__(self, count: int, rng: np.random.Generator, device: torch.device | str = "cpu") -> None:
        self.partner = torch.from_numpy(rng.permutation(count)).to(device)
        self.share = torch.from_numpy(rng.random(count)).float().to(device)[:, None]

    def __call__(self, rows: Tensor) -> Tensor:
        """λ · row + (1 − λ) · partner, for features and one-hot labels alike: a pair of one class keeps mass one."""
        return torch.lerp(rows[self.partner], rows, self.share)

    def spread(self, gradient: Tensor) -> Tensor:
        """The gradient in the mixed rows, carried back to the rows they were mixed from."""
        own = self.share * gradient
        return own.index_add(0, self.partner, (1 - self.share) * gradient)


def support_gradient(
    head: nn.Linear, features: Tensor, y: Tensor, draws: int, rng: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """Of the mean loss over `draws` draws: the head's gradient, and the gradient in each labeled feature."""
    truth = F.one_hot(y, head.out_features).float()
    direction = torch.zeros(head.out_features, head.in_features + 1, device=features.device)
    back = torch.zeros_like(features)
    weight = head.weight.detach().float()
    bias = torch.zeros(head.out_features, device=weight.device) if head.bias is None else head.bias.detach().float()
    for _ in range(draws):
        mix = Mixed(len(y), rng, features.device)
        mixed = mix(features)
        errors = F.linear(mixed, weight, bias).softmax(1) - mix(truth)
        direction += mean_gradient(errors, mixed) / draws
        back += mix.spread(errors @ weight) / (len(y) * draws)
    return direction, back
