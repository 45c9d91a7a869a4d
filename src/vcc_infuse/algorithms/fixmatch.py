"""FixMatch (Sohn et al., NeurIPS 2020): a confident prediction for the weak view labels the strong view."""

from dataclasses import dataclass

from torch import Tensor

from ..types import Calibrated, PseudoLabels, Step
from ..utils.params import number
from .base import PseudoLabeling


@dataclass(kw_only=True, eq=False, repr=False)
class FixMatch(PseudoLabeling):
    """Keep a pseudo label where the confidence of the weak view reaches a fixed threshold.

    Args:
        threshold: confidence that a pseudo label must reach.

    References:
        Sohn et al., FixMatch: Simplifying Semi-Supervised Learning with Consistency and Confidence, NeurIPS 2020.
    """

    threshold: float = number(0.95, 0, 1)

    def class_thresholds(self) -> Tensor | float:
        """One threshold for all classes."""
        return self.threshold

    def pseudo_label(self, calibrated: Calibrated, step: Step) -> PseudoLabels:
        """Hard labels, with weight 1 from the threshold upward and 0 below."""
        return PseudoLabels(calibrated.labels, (calibrated.confidence >= self.threshold).float())
