"""FixMatch (Sohn et al., NeurIPS 2020): a confident prediction for the weak view labels the strong view."""

from __future__ import annotations

from ..errors import check_range
from ..types import Calibrated, PseudoLabels, Step
from .base import PseudoLabeling


class FixMatch(PseudoLabeling):
    """Keep a pseudo label where the confidence of the weak view reaches a fixed threshold.

    Args:
        threshold: confidence that a pseudo label must reach.
        weight: factor of the unlabeled loss.

    References:
        Sohn et al., FixMatch: Simplifying Semi-Supervised Learning with Consistency and Confidence, NeurIPS 2020.
    """

    def __init__(self, *, threshold: float = 0.95, weight: float = 1.0) -> None:
        super().__init__()
        self.threshold = check_range("threshold", threshold, 0, 1)
        self.weight = check_range("weight", weight)

    def class_thresholds(self) -> float:
        """One threshold for all classes."""
        return self.threshold

    def pseudo_label(self, calibrated: Calibrated, step: Step) -> PseudoLabels:
        """Hard labels, with weight 1 from the threshold upward and 0 below."""
        return PseudoLabels(calibrated.labels, (calibrated.confidence >= self.threshold).float())
