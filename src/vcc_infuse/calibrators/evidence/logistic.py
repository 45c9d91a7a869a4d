"""The probability that a label is right, given several pieces of evidence: a monotone logistic model.

More evidence never lowers the probability: weights are not negative. Few labels decide little, so the weights are drawn
to equal shares, and the offset of each class to the common one.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...utils.device import to_float64

WEIGHT, WEIGHT_SD, BIAS, BIAS_SD, CLASS_SD = 1.5, 0.5, 1.0, 1.0, 0.5
"""Normal priors: sum of the weights and deviation of each, bias and its deviation, deviation of a class's offset."""
REMEMBERED = 4096  # examples of the pool among which a probability is ranked


class NormalScores(nn.Module):
    """Ranks probabilities of the label among the last of the pool, column by column, as quantiles of a normal
    distribution; NaN means unknown and does not count.

    Two heads may be right equally often and differ in how sharp they are. Ranked, their evidence can be compared, and
    probabilities near 1 still differ.
    """

    values: Tensor
    ordered: Tensor
    known: Tensor
    cursor: Tensor

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.register_buffer("values", torch.full((columns, REMEMBERED), torch.nan))
        self.register_buffer("ordered", torch.full((columns, REMEMBERED), torch.inf))
        self.register_buffer("known", torch.zeros(columns, 1))
        self.register_buffer("cursor", torch.tensor(0))

    @torch.no_grad()
    def observe(self, probs: Tensor) -> None:
        """Add rows of probabilities of the label, in place of the oldest."""
        probs = probs[-REMEMBERED:]
        places = (self.cursor + torch.arange(len(probs), device=probs.device)) % REMEMBERED
        self.values[:, places] = probs.T
        self.cursor.add_(len(probs)).remainder_(REMEMBERED)
        self.ordered.copy_(self.values.nan_to_num(torch.inf).sort(1).values)
        self.known.copy_((~self.values.isnan()).sum(1, keepdim=True))

    def forward(self, probs: Tensor) -> Tensor:
        """Normal scores, 0 before anything was observed; what is unknown in a column is taken from the first."""
        own = probs.T.contiguous()
        below, upto = (torch.searchsorted(self.ordered, own.nan_to_num(0), right=right) for right in (False, True))
        share = ((below + upto) / 2 + 0.5) / (self.known + 1)
        scores = torch.special.ndtri(share).masked_fill(own.isnan() | (self.known == 0), torch.nan)
        return torch.where(scores.isnan(), scores[:1], scores).nan_to_num(0).T


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


def cross_fitted(evidence: Tensor, labels: Tensor, right: Tensor, folds: Tensor, classes: int) -> Tensor:
    """The probability of each label by a model fitted to the other folds: its own answer had no part in it."""
    scores = evidence.new_empty(len(labels))
    for fold in torch.bincount(folds).nonzero():
        own, model = folds == fold, Reliability(evidence.shape[1], classes).to(evidence.device)
        model.fit(evidence[~own], labels[~own], right[~own])
        scores[own] = model(evidence[own], labels[own])
    return scores


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
