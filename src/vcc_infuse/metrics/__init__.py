"""Metrics: classification errors, calibration errors, cuts for abstaining and pseudo-label quality.

Every function accepts torch tensors, NumPy arrays and lists, computes in float64 and returns fractions of 1.
"""

from .abstain import Cut, abstain_table, at_cut, suggest_cuts
from .calibration import Reliability, ace, ace_classwise, average_ce, classwise_ece, ece, mce, paper_preset, reliability
from .classification import (
    ClassQuality,
    PseudoLabelQuality,
    TailGroups,
    auroc,
    balanced_error,
    brier,
    confusion_counts,
    error,
    group_errors,
    nll,
    per_class_error,
    pseudo_label_quality,
    pseudo_label_quality_per_class,
    tail_groups,
    taken_for,
    top_k_error,
)

__all__ = [
    "ClassQuality",
    "Cut",
    "PseudoLabelQuality",
    "Reliability",
    "TailGroups",
    "abstain_table",
    "ace",
    "ace_classwise",
    "at_cut",
    "auroc",
    "average_ce",
    "balanced_error",
    "brier",
    "classwise_ece",
    "confusion_counts",
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
    "suggest_cuts",
    "tail_groups",
    "taken_for",
    "top_k_error",
]
