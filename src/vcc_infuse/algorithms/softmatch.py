"""SoftMatch (Chen et al., ICLR 2023): a label counts less the further its confidence lies below the mean."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..types import Calibrated, PseudoLabels, Step, Task
from ..validation import check_range
from .alignment import EMAAlignment
from .base import PseudoLabeling


class SoftMatch(PseudoLabeling):
    """Weights follow a Gaussian, cut off at its mean, fitted to the aligned confidence.

    Args:
        weight: factor of the unlabeled loss.
        sigmas: the Gaussian of the weights is narrower than that of the confidence by this factor.
        momentum: of the running mean and variance, and of the alignment.
        align: judge confidence after alignment to the uniform distribution (labels are not aligned).
        per_class: keep a mean and a variance for each predicted class.
    """

    mean: Tensor
    variance: Tensor

    def __init__(
        self,
        weight: float = 1.0,
        sigmas: float = 2.0,
        momentum: float = 0.999,
        align: bool = True,
        per_class: bool = False,
    ) -> None:
        super().__init__()
        self.weight = check_range("weight", weight)
        self.sigmas = check_range("sigmas", sigmas, 1e-6)
        self.momentum = check_range("momentum", momentum, 0, 1)
        self.align, self.per_class = align, per_class

    def setup(self, model: nn.Module, task: Task) -> None:
        """Mean and variance of the confidence: one of each, or one a class."""
        groups = task.classes if self.per_class else 1
        self.register_buffer("mean", torch.full((groups,), 1 / task.classes))
        self.register_buffer("variance", torch.ones(groups))
        self.alignment = EMAAlignment(task.classes, self.momentum)

    @torch.no_grad()
    def pseudo_label(self, calibrated: Calibrated, step: Step) -> PseudoLabels:
        """Hard labels, weighted by the Gaussian after it has taken in this batch."""
        confidence, groups = calibrated.confidence.float(), calibrated.labels
        if self.align:
            confidence, groups = self.alignment(calibrated.probs, step.gather).max(1)
        if not self.per_class:
            groups = torch.zeros_like(groups)
        if self.training:
            self._update(step.gather(confidence), step.gather(groups))
        below = (confidence - self.mean[groups]).clamp(max=0)
        width = self.variance[groups] / self.sigmas**2
        weights = (-below.square() / (2 * width).clamp(min=1e-12)).exp()
        return PseudoLabels(calibrated.labels, weights)

    def _update(self, confidence: Tensor, groups: Tensor) -> None:
        """Follow mean and unbiased variance; a group without an example (or two) in the batch keeps its own."""
        zero = torch.zeros_like(self.mean)
        count = zero.index_add(0, groups, torch.ones_like(confidence))
        mean = zero.index_add(0, groups, confidence) / count.clamp(min=1)
        squares = zero.index_add(0, groups, (confidence - mean[groups]).square())
        variance = squares / (count - 1).clamp(min=1)
        self.mean.copy_(self.mean.where(count < 1, mean.lerp(self.mean, self.momentum)))
        self.variance.copy_(self.variance.where(count < 2, variance.lerp(self.variance, self.momentum)))
