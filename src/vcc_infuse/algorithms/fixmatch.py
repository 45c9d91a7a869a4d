"""FixMatch (Sohn et al., NeurIPS 2020): a confident weak view gives the strong view its label."""

from __future__ import annotations

from ..types import Calibrated, PseudoLabels, Step
from .base import PseudoLabelling, checked


class FixMatch(PseudoLabelling):
    """Keep a pseudo label where the weak view's confidence reaches a fixed threshold.

    Args:
        threshold: confidence that a pseudo label must reach.
        weight: factor of the unlabelled loss.
    """

    def __init__(self, threshold: float = 0.95, weight: float = 1.0) -> None:
        super().__init__()
        self.threshold = checked("threshold", threshold, 0, 1)
        self.weight = checked("weight", weight, 0, float("inf"))

    def class_thresholds(self) -> float:
        """The same for all."""
        return self.threshold

    def pseudo_label(self, calibrated: Calibrated, step: Step) -> PseudoLabels:
        """Hard labels, weight one above the threshold and zero below."""
        return PseudoLabels(calibrated.labels, (calibrated.confidence >= self.threshold).float())
