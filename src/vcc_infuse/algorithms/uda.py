"""UDA (Xie et al., NeurIPS 2020): the strong view learns the sharpened distribution of a confident weak view."""

from __future__ import annotations

import math
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from ..errors import UserError
from ..types import Calibrated, PseudoLabels, Step
from ..validation import check_range
from .base import PseudoLabeling
from .ops import sharpen

SCHEDULES = {
    "none": lambda progress: 1.0,
    "linear": lambda progress: progress,
    "exp": lambda progress: math.exp(5 * (progress - 1)),
    "log": lambda progress: 1 - math.exp(-5 * progress),
}


class UDA(PseudoLabeling):
    """Soft, sharpened targets above a threshold.

    Args:
        threshold: confidence that a pseudo label must reach.
        weight: factor of the unlabeled loss.
        temperature: of the sharpening; below one makes targets more certain.
        annealing: how fast labeled examples that are already right with high probability may be learned from
            (training signal annealing); "none" uses them all throughout.
    """

    def __init__(
        self,
        threshold: float = 0.8,
        weight: float = 1.0,
        temperature: float = 0.4,
        annealing: Literal["none", "linear", "exp", "log"] = "none",
    ) -> None:
        super().__init__()
        self.threshold = check_range("threshold", threshold, 0, 1)
        self.weight = check_range("weight", weight)
        self.temperature = check_range("temperature", temperature, 1e-3)
        if annealing not in SCHEDULES:
            raise UserError(f"annealing must be one of {', '.join(SCHEDULES)}, got {annealing!r}")
        self.annealing = annealing

    def class_thresholds(self) -> float:
        """The same for all."""
        return self.threshold

    def pseudo_label(self, calibrated: Calibrated, step: Step) -> PseudoLabels:
        """Sharpened targets, weight one above the threshold and zero below."""
        targets = sharpen(calibrated.probs.detach(), self.temperature)
        return PseudoLabels(targets, (calibrated.confidence >= self.threshold).float())

    def labeled_term(self, logits: Tensor, step: Step) -> Tensor:
        """The labeled loss, annealed."""
        return annealed_loss(logits, step.batch.y, SCHEDULES[self.annealing](step.progress))


def annealed_loss(logits: Tensor, y: Tensor, released: float) -> Tensor:
    """Mean cross entropy of the examples whose true class has at most a probability that rises from 1/K to 1."""
    each = F.cross_entropy(logits.float(), y, reduction="none")
    if released >= 1:
        return each.mean()
    floor = 1 / logits.shape[1]
    kept = (each.detach().neg().exp() <= released * (1 - floor) + floor).float()
    return (each * kept).sum() / kept.sum().clamp(min=1)
