"""DARP's convex problem: the distributions nearest to given ones whose sums over the pool are given, too.

Minimise Σₙ wₙ·KL(Xₙ‖Qₙ) where rows of X sum to one and columns to `totals`; wₙ = 1/entropy(Qₙ) holds sure rows back.
With hₙ = 1/wₙ the optimum is Xₙ = softmax(log Qₙ − hₙ·ν): only one number a class is unknown.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..data.precision import wide

SMALL = 1e-6


def pruned(probs: Tensor, totals: Tensor, alpha: float) -> Tensor:
    """Of each class the ⌊alpha·total⌋ likeliest rows, scaled to the total; then rows sum to one, none of them zero."""
    kept = (alpha * totals).floor().clamp(min=1)
    ranks = probs.argsort(dim=0, descending=True, stable=True).argsort(dim=0)
    probs = probs.where(ranks < kept, 0)
    scaled = probs * ((totals + SMALL) / (probs.sum(0) + SMALL)) + SMALL
    return scaled / scaled.sum(1, keepdim=True)


def transport(probs: Tensor, totals: Tensor, iterations: int = 50, tolerance: float = 1e-7) -> Tensor:
    """The optimum, by Newton's method in the dual for all classes at once, halving steps that do not descend."""
    problem = Dual(wide(probs), wide(totals))
    nu = torch.zeros_like(problem.totals)
    for _ in range(iterations):
        rows = problem.rows(nu)
        surplus = rows.sum(0) - problem.totals
        if surplus.abs().max() <= tolerance * len(rows):
            break
        nu = problem.descend(nu, rows, surplus)
    return problem.rows(nu).to(probs.dtype)


class Dual:
    """The dual problem, smooth and convex: its gradient is what the columns lack."""

    def __init__(self, probs: Tensor, totals: Tensor) -> None:
        self.logs = probs.clamp(min=torch.finfo(probs.dtype).tiny).log()
        self.entropy = -(probs * self.logs).sum(1, keepdim=True).clamp(max=-1e-9)
        self.totals = totals * (len(probs) / totals.sum())

    def rows(self, nu: Tensor) -> Tensor:
        """The distributions for given prices of the classes."""
        return (self.logs - self.entropy * nu).softmax(1)

    def value(self, nu: Tensor) -> Tensor:
        """What is minimised."""
        return ((self.logs - self.entropy * nu).logsumexp(1) / self.entropy[:, 0]).sum() + nu @ self.totals

    def descend(self, nu: Tensor, rows: Tensor, surplus: Tensor) -> Tensor:
        """One Newton step, halved until the value falls by a share of what the slope promises."""
        heavy = self.entropy * rows
        curvature = heavy.sum(0).diag() - rows.T @ heavy
        # Equal prices for all change nothing: that direction gets a curvature of its own, and rounding a little more.
        scale = curvature.diag().mean()
        curvature = curvature + scale / len(nu) + 1e-12 * scale * torch.eye(len(nu), device=nu.device, dtype=nu.dtype)
        direction = torch.linalg.solve(curvature, surplus)
        start, slope = self.value(nu), direction @ surplus
        for halving in range(40):
            tried = nu + 0.5**halving * direction
            if self.value(tried) <= start - 1e-4 * 0.5**halving * slope:
                return tried
        return nu
