"""DARP (Kim et al., NeurIPS 2020): refine the pseudo labels of the pool together to match the expected class sizes.

The refinement is a convex problem: minimize Σₙ wₙ·KL(Xₙ‖Qₙ), where the rows of X sum to one and its columns to the
class sizes. The weights wₙ = 1/entropy(Qₙ) keep confident rows close to their prediction Qₙ. With hₙ = 1/wₙ the optimum
is Xₙ = softmax(log Qₙ − hₙ·ν), so that only ν, one number per class, is unknown.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ...errors import OptionError, check_integer, check_range
from ...types import Calibrated, Step, Task
from ...utils.device import to_float64
from ..base import PseudoLabeling
from ..ops import last_occurrence
from .wrapper import Wrapper

SMALL = 1e-6


class DARP(Wrapper):
    """Late in the run, labels come from the refined distributions; confidence and mask stay those of the base.

    Args:
        alpha: each class keeps this multiple of its expected size as candidates.
        every: steps between refinements.
        start_fraction: fraction of the run after which they start.
        class_frequencies: expected relative class sizes in the pool; those of the labels by default.

    References:
        Kim et al., Distribution Aligning Refinery of Pseudo-label for Imbalanced Semi-supervised Learning, NeurIPS
        2020.
    """

    def __init__(
        self,
        base: PseudoLabeling | None = None,
        *,
        alpha: float = 2.0,
        every: int = 10,
        start_fraction: float = 0.4,
        class_frequencies: Sequence[float] | None = None,
    ) -> None:
        super().__init__(base)
        self.alpha = check_range("alpha", alpha, 1)
        self.every = check_integer("every", every)
        self.start_fraction = check_range("start_fraction", start_fraction, 0, 1)
        self.class_frequencies = class_frequencies
        if class_frequencies is not None:
            self.class_frequencies = [check_range("class_frequencies", value) for value in class_frequencies]
            if sum(self.class_frequencies) == 0:
                raise OptionError("class_frequencies", self.class_frequencies, "must have at least one number above 0")

    def setup(self, model: nn.Module, task: Task) -> None:
        """Latest and refined (zero: none yet) probabilities of each pool example; expected class frequencies."""
        super().setup(model, task)
        given = self.class_frequencies
        if given is not None and len(given) != task.classes:
            raise OptionError("class_frequencies", given, f"must have {task.classes} numbers, one per class")
        # A class without labels should be rare, not impossible.
        counts = task.label_counts.float().clamp(min=0.5) if given is None else torch.tensor(given)
        self.expected = nn.Buffer((counts / counts.sum()).clamp(min=1e-6))
        self.probs = nn.Buffer(torch.zeros(task.pool, task.classes))
        self.seen = nn.Buffer(torch.zeros(task.pool, dtype=torch.bool))
        self.refined = nn.Buffer(torch.zeros(task.pool, task.classes))

    def on_coreset_change(self, ids: Tensor) -> None:
        """Forget examples outside the core set, whose probabilities would become stale."""
        super().on_coreset_change(ids)
        self.seen.copy_(torch.zeros_like(self.seen).index_copy(0, ids, self.seen[ids]))
        self.refined.mul_(self.seen[:, None])

    @torch.no_grad()
    def correct(self, calibrated: Calibrated, step: Step) -> Calibrated:
        """Refined probabilities with the given confidence."""
        probs = calibrated.probs.float()
        if self.training:
            ids = step.gather(step.batch.pool_ids)
            self.probs[ids] = step.gather(probs)[last_occurrence(ids)]
            self.seen[ids] = True
        if step.progress < self.start_fraction:
            return calibrated
        if self.training and step.number % self.every == 0:
            self._refine()
        refined = self.refined[step.batch.pool_ids]
        return calibrated._replace(probs=refined.where(refined.sum(1, keepdim=True) > 0, probs))

    def _refine(self) -> None:
        probs = self.probs[self.seen]
        totals = self.expected / self.expected.sum() * len(probs)
        self.refined[self.seen] = transport(prune(probs, totals, self.alpha), totals)


def prune(probs: Tensor, totals: Tensor, alpha: float) -> Tensor:
    """Keep the ⌊alpha·total⌋ most probable rows of each class, scaled to its total; then normalize, without zeros."""
    kept = (alpha * totals).floor().clamp(min=1)
    ranks = probs.argsort(dim=0, descending=True, stable=True).argsort(dim=0)
    probs = probs.where(ranks < kept, 0)
    scaled = probs * ((totals + SMALL) / (probs.sum(0) + SMALL)) + SMALL
    return scaled / scaled.sum(1, keepdim=True)


def transport(probs: Tensor, totals: Tensor, iterations: int = 50, tolerance: float = 1e-7) -> Tensor:
    """The optimum X, by Newton's method with line search in the dual problem."""
    problem = Dual(to_float64(probs), to_float64(totals))
    nu = torch.zeros_like(problem.totals)
    for _ in range(iterations):
        rows = problem.rows(nu)
        surplus = rows.sum(0) - problem.totals
        if surplus.abs().max() <= tolerance * len(rows):
            break
        nu = problem.newton_step(nu, rows, surplus)
    return problem.rows(nu).to(probs.dtype)


class Dual:
    """The dual problem in ν, smooth and convex; its gradient is the deviation of the column sums."""

    def __init__(self, probs: Tensor, totals: Tensor) -> None:
        self.logs = probs.clamp(min=torch.finfo(probs.dtype).tiny).log()
        self.entropy = -(probs * self.logs).sum(1, keepdim=True).clamp(max=-1e-9)
        self.totals = totals * (len(probs) / totals.sum())

    def rows(self, nu: Tensor) -> Tensor:
        """The distributions Xₙ for a given ν."""
        return (self.logs - self.entropy * nu).softmax(1)

    def value(self, nu: Tensor) -> Tensor:
        """The objective."""
        return ((self.logs - self.entropy * nu).logsumexp(1) / self.entropy[:, 0]).sum() + nu @ self.totals

    def newton_step(self, nu: Tensor, rows: Tensor, surplus: Tensor) -> Tensor:
        """One Newton step, halved until the objective decreases sufficiently (Armijo rule)."""
        weighted = self.entropy * rows
        hessian = weighted.sum(0).diag() - rows.T @ weighted
        # Adding a constant to ν changes nothing, so that direction gets a curvature; the diagonal absorbs rounding.
        scale = hessian.diag().mean()
        hessian = hessian + scale / len(nu) + 1e-12 * scale * torch.eye(len(nu), device=nu.device, dtype=nu.dtype)
        direction: Tensor = torch.linalg.solve(hessian, surplus)
        start = self.value(nu)
        slope = direction @ surplus
        for halving in range(40):
            candidate = nu + 0.5**halving * direction
            if self.value(candidate) <= start - 1e-4 * 0.5**halving * slope:
                return candidate
        return nu
