"""DARP's convex problem: the distributions nearest to given ones whose sums over the pool are given, too.

Minimise Σₙ wₙ·KL(Xₙ‖Qₙ) where rows of X sum to one and columns to `totals`; wₙ = 1/entropy(Qₙ) holds sure rows back.
With hₙ = 1/wₙ the optimum is Xₙ = softmax(log Qₙ − hₙ·ν): only one number a class is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..algorithms.base import PseudoLabeling
from ..algorithms.ops import last_occurrence
from ..errors import UserError
from ..types import Calibrated, Step, Task
from ..utils.numerics import to_float64
from ..validation import check_integer, check_range
from .plugin import Plugin

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
    problem = Dual(to_float64(probs), to_float64(totals))
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
        """What is minimized."""
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


class DARP(Plugin):
    """Late in the run, labels come from the nearest distributions with the right class totals; the base's mask stays.

    Args:
        base: the method whose labels are refined; FixMatch if not given.
        alpha: a class keeps this many times its expected number of examples as candidates.
        every: steps between refinements.
        start: share of the run after which they begin (200 of 256 epochs).
        shares: expected share of each class in the pool; that of the labels if not given.
    """

    probs: Tensor
    seen: Tensor
    refined: Tensor
    expected: Tensor

    def __init__(
        self,
        base: PseudoLabeling | None = None,
        alpha: float = 2.0,
        every: int = 10,
        start: float = 200 / 256,
        shares: Sequence[float] | None = None,
    ) -> None:
        super().__init__(base)
        self.alpha = check_range("alpha", alpha, 1)
        self.every = check_integer("every", every, 1)
        self.start = check_range("start", start, 0, 1)
        self.shares = None if shares is None else [check_range("shares", share) for share in shares]

    def setup(self, model: nn.Module, task: Task) -> None:
        """Latest and refined (zero: none yet) probabilities of each pool example; expected shares of the classes."""
        super().setup(model, task)
        if self.shares is not None and len(self.shares) != task.classes:
            raise UserError(f"shares has {len(self.shares)} numbers for {task.classes} classes; give one a class")
        # A class without labels shall be rare, not impossible.
        counts = task.label_counts.float().clamp(min=0.5) if self.shares is None else torch.tensor(self.shares)
        self.register_buffer("expected", (counts / counts.sum()).clamp(min=1e-6))
        self.register_buffer("probs", torch.zeros(task.pool, task.classes))
        self.register_buffer("seen", torch.zeros(task.pool, dtype=torch.bool))
        self.register_buffer("refined", torch.zeros(task.pool, task.classes))

    def on_coreset_change(self, ids: Tensor) -> None:
        """Forget what the core set leaves out: its probabilities would grow old."""
        super().on_coreset_change(ids)
        self.seen.copy_(torch.zeros_like(self.seen).index_copy(0, ids, self.seen[ids]))
        self.refined *= self.seen[:, None]

    @torch.no_grad()
    def correct(self, calibrated: Calibrated, step: Step) -> Calibrated:
        """The refined probabilities of these examples, the given confidence."""
        probs = calibrated.probs.float()
        if self.training:
            self._remember(step.gather(step.batch.pool_ids), step.gather(probs))
        if step.progress < self.start:
            return calibrated
        if self.training and step.number % self.every == 0:
            self._refine()
        refined = self.refined[step.batch.pool_ids]
        return calibrated._replace(probs=refined.where(refined.sum(1, keepdim=True) > 0, probs))

    def _remember(self, ids: Tensor, probs: Tensor) -> None:
        self.probs[ids], self.seen[ids] = probs[last_occurrence(ids)], True

    def _refine(self) -> None:
        probs = self.probs[self.seen]
        totals = self.expected / self.expected.sum() * len(probs)
        self.refined[self.seen] = transport(pruned(probs, totals, self.alpha), totals)
