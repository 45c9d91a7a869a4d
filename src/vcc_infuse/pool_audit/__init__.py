"""What a person should look at: unknown images, near copies, doubtful labels, class shares, and what to label next.

Every function takes arrays, features of a frozen network above all, and returns small values. Bring features to unit
length with `unit_rows` first.
"""

from .arrays import unit_rows
from .curve import Interval, LearningCurve, learning_curve
from .doubtful import DoubtfulLabels, find_doubtful_labels, judge_labels, out_of_fold_probs
from .duplicates import Duplicates, across_parts, conflicting_labels, find_duplicates, perceptual_hashes
from .ridge import LeaveOneOut, RidgeHead, fit_ridge, leave_one_out
from .shares import ClassShares, estimate_shares, shares_by_confusion, shares_by_em
from .suggest import Suggestions, suggest_labels
from .unknown import ForeignCluster, Unknown, conformal_p, find_unknown, foreign_clusters, leave_one_out_distances

__all__ = ["ClassShares", "DoubtfulLabels", "Duplicates", "ForeignCluster", "Interval", "LearningCurve", "LeaveOneOut"]
__all__ += ["RidgeHead", "Suggestions", "Unknown", "across_parts", "conflicting_labels", "conformal_p"]
__all__ += ["estimate_shares", "find_doubtful_labels", "find_duplicates", "find_unknown", "fit_ridge"]
__all__ += ["foreign_clusters", "judge_labels", "learning_curve", "leave_one_out", "leave_one_out_distances"]
__all__ += ["out_of_fold_probs", "perceptual_hashes", "shares_by_confusion", "shares_by_em", "suggest_labels"]
__all__ += ["unit_rows"]
