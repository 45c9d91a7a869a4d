"""SoftMatch (Chen et al., ICLR 2023): the weight of a label falls as its confidence drops below the mean."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..types import Calibrated, PseudoLabels, Step, Task
from ..utils.params import number
from .base import PseudoLabeling
from .ops import EMAAlignment


@dataclass(kw_only=True, eq=False, repr=False)
class SoftMatch(PseudoLabeling):
    """Weights follow a Gaussian fitted to the aligned confidence, and are 1 above its mean.

    Args:
        sigmas: the standard deviation of the confidence is divided by this number.
        momentum: of the running mean and variance, and of the alignment; less in short runs, see `Step.momentum`.
        align: align probabilities to the uniform distribution before taking the confidence; labels stay unaligned.
        per_class: keep mean and variance per predicted class.

    References:
        Chen et al., SoftMatch: Addressing the Quantity-Quality Trade-off in Semi-supervised Learning, ICLR 2023.
    """

    sigmas: float = number(2.0, open_low=True)
    momentum: float = number(0.999, 0, 1)
    align: bool = True
    per_class: bool = False

    def setup(self, model: nn.Module, task: Task) -> None:
        """Running mean and variance of the confidence, overall or per class."""
        groups = task.classes if self.per_class else 1
        self.mean = nn.Buffer(torch.full((groups,), 1 / task.classes))
        self.variance = nn.Buffer(torch.ones(groups))
        self.alignment = EMAAlignment(task.classes, momentum=self.momentum)

    @torch.no_grad()
    def pseudo_label(self, calibrated: Calibrated, step: Step) -> PseudoLabels:
        """Hard labels, weighted by the Gaussian, which is updated with this batch first."""
        confidence = calibrated.confidence.float()
        groups = calibrated.labels
        if self.align:
            confidence, groups = self.alignment(calibrated.probs, step.gather, step.momentum(self.momentum)).max(1)
        if not self.per_class:
            groups = torch.zeros_like(groups)
        if self.training:
            self._update(step.gather(confidence), step.gather(groups), step.momentum(self.momentum))
        below = (confidence - self.mean[groups]).clamp(max=0)
        width = self.variance[groups] / self.sigmas**2
        weights = (-below.square() / (2 * width).clamp(min=1e-12)).exp()
        return PseudoLabels(calibrated.labels, weights)

    def _update(self, confidence: Tensor, groups: Tensor, momentum: float) -> None:
        """Update mean and unbiased variance of each group with at least one (variance: two) examples in the batch."""
        zero = torch.zeros_like(self.mean)
        count = zero.index_add(0, groups, torch.ones_like(confidence))
        mean = zero.index_add(0, groups, confidence) / count.clamp(min=1)
        squares = zero.index_add(0, groups, (confidence - mean[groups]).square())
        variance = squares / (count - 1).clamp(min=1)
        self.mean.copy_(self.mean.where(count < 1, mean.lerp(self.mean, momentum)))
        self.variance.copy_(self.variance.where(count < 2, variance.lerp(self.variance, momentum)))
