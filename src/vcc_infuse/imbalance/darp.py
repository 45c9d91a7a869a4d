"""DARP (Kim et al., NeurIPS 2020): refine the pool's pseudo labels together until classes have their expected sizes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..algorithms.base import PseudoLabelling, checked
from ..algorithms.duplicates import remembered
from ..errors import UserError
from ..types import Calibrated, Step, Task
from .plugin import Plugin
from .transport import pruned, transport


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
        base: PseudoLabelling | None = None,
        alpha: float = 2.0,
        every: int = 10,
        start: float = 200 / 256,
        shares: Sequence[float] | None = None,
    ) -> None:
        super().__init__(base)
        self.alpha = checked("alpha", alpha, 1, float("inf"))
        self.every = int(checked("every", every, 1, 2**40))
        self.start = checked("start", start, 0, 1)
        self.shares = None if shares is None else [checked("shares", share, 0, float("inf")) for share in shares]

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

    def restrict(self, ids: Tensor) -> None:
        """Forget what the core set leaves out: its probabilities would grow old."""
        super().restrict(ids)
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
        self.probs[ids], self.seen[ids] = probs[remembered(ids)], True

    def _refine(self) -> None:
        probs = self.probs[self.seen]
        totals = self.expected / self.expected.sum() * len(probs)
        self.refined[self.seen] = transport(pruned(probs, totals, self.alpha), totals)
