"""The probability that a label is right, given several pieces of evidence: a monotone logistic model.

More evidence never lowers the probability: weights are not negative. Few labels decide little, so the weights are drawn
to equal shares, and the offset of each class to the common one.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...utils.numerics import to_float64

WEIGHT, WEIGHT_SD, BIAS, BIAS_SD, CLASS_SD = 1.5, 0.5, 1.0, 1.0, 0.5
"""Normal priors: sum of the weights and deviation of each, bias and its deviation, deviation of a class's offset."""
CLIP = 1e-4
MEMORY = 0.98  # factor of the past in moments


class Moments(nn.Module):
    """Scales log odds to mean 0 and deviation 1 over the pool, column by column; NaN means unknown and does not count.

    Two heads may be right equally often and differ in how sharp they are. Scaled, their evidence can be compared.
    """

    count: Tensor
    mean: Tensor
    square: Tensor

    def __init__(self, columns: int) -> None:
        super().__init__()
        for name in ("count", "mean", "square"):
            self.register_buffer(name, torch.zeros(columns))

    @torch.no_grad()
    def observe(self, probs: Tensor) -> None:
        """Add rows of probabilities of the label."""
        values = log_odds(probs)
        known = ~values.isnan()
        count = known.sum(0)
        self.count.mul_(MEMORY).add_(count)
        share = count / self.count.clamp_min(1)
        for moment, each in ((self.mean, values), (self.square, values.square())):
            moment.lerp_(each.nansum(0) / count.clamp_min(1), share)

    def forward(self, probs: Tensor) -> Tensor:
        """Scaled log odds; what is unknown in a column is taken from the first."""
        deviation = (self.square - self.mean.square()).clamp_min(1e-4).sqrt()
        scaled = (log_odds(probs) - self.mean) / deviation
        return torch.where(scaled.isnan(), scaled[:, :1], scaled)


def log_odds(probs: Tensor) -> Tensor:
    """log p/(1 − p), with p kept away from 0 and 1."""
    return probs.clamp(CLIP, 1 - CLIP).logit()


class Reliability(nn.Module):
    """σ(weights · evidence + bias + offset of the label's class)."""

    weights: Tensor
    bias: Tensor
    offsets: Tensor

    def __init__(self, evidence: int, classes: int) -> None:
        super().__init__()
        self.register_buffer("weights", torch.full((evidence,), WEIGHT / evidence))
        self.register_buffer("bias", torch.tensor(BIAS))
        self.register_buffer("offsets", torch.zeros(classes))

    def forward(self, evidence: Tensor, labels: Tensor) -> Tensor:
        """The probability that each label is right."""
        return (evidence @ self.weights + self.bias + self.offsets[labels]).sigmoid()

    @torch.no_grad()
    def fit(self, evidence: Tensor, labels: Tensor, right: Tensor, rounds: int = 10) -> None:
        """The most probable parameters, from where they are: Newton steps for the common ones, then for each class."""
        x, y = to_float64(evidence), to_float64(right)
        weights, bias, offsets = (to_float64(part) for part in (self.weights, self.bias, self.offsets))
        for _ in range(rounds):
            weights, bias = _common_step(x, y, weights, bias, offsets[labels])
            offsets = _class_step(x @ weights + bias, y, labels, offsets)
        for buffer, value in ((self.weights, weights), (self.bias, bias), (self.offsets, offsets)):
            buffer.copy_(value)


def _common_step(x: Tensor, y: Tensor, weights: Tensor, bias: Tensor, offset: Tensor) -> tuple[Tensor, Tensor]:
    """One Newton step on weights and bias; a weight at zero that would become negative stays there."""
    ones = torch.ones_like(y)[:, None]
    design, at = torch.cat([x, ones], 1), torch.cat([weights, bias[None]])
    center = torch.cat([torch.full_like(weights, WEIGHT / len(weights)), torch.full_like(bias, BIAS)[None]])
    precision = torch.cat([torch.full_like(weights, WEIGHT_SD**-2), torch.full_like(bias, BIAS_SD**-2)[None]])
    probs = (design @ at + offset).sigmoid()
    slope = design.T @ (probs - y) + precision * (at - center)
    curvature = design.T @ (design * (probs * (1 - probs))[:, None]) + precision.diag()
    free = (at > 0) | (slope < 0)
    free[-1] = True
    step = torch.zeros_like(at)
    step[free] = torch.linalg.solve(curvature[free][:, free], slope[free])
    at = at - step / step.abs().max().clamp_min(1)
    return at[:-1].clamp_min(0), at[-1]


def _class_step(common: Tensor, y: Tensor, labels: Tensor, offsets: Tensor) -> Tensor:
    """One Newton step on the offset of each class."""
    probs = (common + offsets[labels]).sigmoid()
    slope = (offsets / CLASS_SD**2).index_add(0, labels, probs - y)
    curvature = torch.full_like(offsets, CLASS_SD**-2).index_add(0, labels, probs * (1 - probs))
    return offsets - (slope / curvature).clamp(-1, 1)
