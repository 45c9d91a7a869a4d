"""SoftMatch (Chen et al., ICLR 2023): the weight of a label falls as its confidence drops below the mean."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..errors import check_range
from ..types import Calibrated, PseudoLabels, Step, Task
from .alignment import EMAAlignment
from .base import PseudoLabeling


class SoftMatch(PseudoLabeling):
    """Weights follow a Gaussian fitted to the aligned confidence, and are 1 above its mean.

    Args:
        weight: factor of the unlabeled loss.
        sigmas: the standard deviation of the confidence is divided by this number.
        momentum: of the running mean and variance, and of the alignment.
        align: align probabilities to the uniform distribution before taking the confidence; labels stay unaligned.
        per_class: keep mean and variance per predicted class.

    References:
        Chen et al., SoftMatch: Addressing the Quantity-Quality Trade-off in Semi-supervised Learning, ICLR 2023.
    """

    mean: Tensor
    variance: Tensor

    def __init__(
        self,
        *,
        weight: float = 1.0,
        sigmas: float = 2.0,
        momentum: float = 0.999,
        align: bool = True,
        per_class: bool = False,
    ) -> None:
        super().__init__()
        self.weight = check_range("weight", weight)
        self.sigmas = check_range("sigmas", sigmas, open_low=True)
        self.momentum = check_range("momentum", momentum, 0, 1)
        self.align = align
        self.per_class = per_class

    def setup(self, model: nn.Module, task: Task) -> None:
        """Running mean and variance of the confidence, overall or per class."""
        groups = task.classes if self.per_class else 1
        self.register_buffer("mean", torch.full((groups,), 1 / task.classes))
        self.register_buffer("variance", torch.ones(groups))
        self.alignment = EMAAlignment(task.classes, momentum=self.momentum)

    @torch.no_grad()
    def pseudo_label(self, calibrated: Calibrated, step: Step) -> PseudoLabels:
        """Hard labels, weighted by the Gaussian, which is updated with this batch first."""
        confidence = calibrated.confidence.float()
        groups = calibrated.labels
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
        """Update mean and unbiased variance of each group with at least one (variance: two) examples in the batch."""
        zero = torch.zeros_like(self.mean)
        count = zero.index_add(0, groups, torch.ones_like(confidence))
        mean = zero.index_add(0, groups, confidence) / count.clamp(min=1)
        squares = zero.index_add(0, groups, (confidence - mean[groups]).square())
        variance = squares / (count - 1).clamp(min=1)
        self.mean.copy_(self.mean.where(count < 1, mean.lerp(self.mean, self.momentum)))
        self.variance.copy_(self.variance.where(count < 2, variance.lerp(self.variance, self.momentum)))
