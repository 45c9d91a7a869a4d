"""Metrics: classification errors, calibration errors and pseudo-label quality.

Every function accepts torch tensors, NumPy arrays and lists, computes in float64 and returns fractions of 1.
"""

from .calibration import Reliability, ace, ace_classwise, average_ce, classwise_ece, ece, mce, paper_preset, reliability
from .classification import (
    ClassQuality,
    PseudoLabelQuality,
    TailGroups,
    auroc,
    balanced_error,
    brier,
    error,
    group_errors,
    nll,
    per_class_error,
    pseudo_label_quality,
    pseudo_label_quality_per_class,
    tail_groups,
    top_k_error,
)

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
