"""Metrics: classification errors, calibration errors and pseudo-label quality.

Every function accepts torch tensors, NumPy arrays and lists, computes in float64 and returns fractions of 1.
"""

from .calibration import ace, ace_classwise, average_ce, classwise_ece, ece, mce, paper_preset
from .classification import auroc, balanced_error, brier, error, nll, per_class_error, top_k_error
from .groups import TailGroups, group_errors, tail_groups
from .pseudo import ClassQuality, PseudoLabelQuality, pseudo_label_quality, pseudo_label_quality_per_class
from .reliability import Reliability, reliability

__all__ = [
    "ClassQuality",
    "PseudoLabelQuality",
    "Reliability",
    "TailGroups",
    "ace",
    "ace_classwise",
    "auroc",
    "average_ce",
    "balanced_error",
    "brier",
    "classwise_ece",
    "ece",
    "error",
    "group_errors",
    "mce",
    "nll",
    "paper_preset",
    "per_class_error",
    "pseudo_label_quality",
    "pseudo_label_quality_per_class",
    "reliability",
    "tail_groups",
    "top_k_error",
]
