"""What a person should look at: unknown images, near copies, doubtful labels, class shares, and what to label next.

Every function takes arrays, features of a frozen network above all, and returns small values. Bring features to unit
length with `unit_rows` first.
"""

from .arrays import unit_rows
from .audit import Audit, AuditedImages, Issue, NextLabel, audit_images, next_labels
from .curve import Interval, LearningCurve, learning_curve
from .doubtful import DoubtfulLabels, find_doubtful_labels, judge_labels
from .duplicates import Duplicates, across_parts, conflicting_labels, find_duplicates, perceptual_hashes
from .ridge import LeaveOneOut, RidgeHead, fit_ridge, leave_one_out
from .shares import ClassShares, estimate_shares, shares_by_confusion, shares_by_em
from .suggest import PoolGroups, Suggestions, suggest_labels
from .unknown import ForeignCluster, KnownRows, Unknown, conformal_p, find_unknown, foreign_clusters, known_share

__all__ = ["Audit", "AuditedImages", "ClassShares", "DoubtfulLabels", "Duplicates", "ForeignCluster", "Interval"]
__all__ += ["Issue", "KnownRows", "LearningCurve", "LeaveOneOut", "NextLabel", "PoolGroups", "RidgeHead"]
__all__ += ["Suggestions", "Unknown"]
__all__ += ["across_parts", "audit_images", "conflicting_labels", "conformal_p", "estimate_shares"]
__all__ += ["find_doubtful_labels", "find_duplicates", "find_unknown", "fit_ridge", "foreign_clusters", "judge_labels"]
__all__ += ["known_share", "learning_curve", "leave_one_out", "next_labels"]
__all__ += ["perceptual_hashes", "shares_by_confusion", "shares_by_em", "suggest_labels", "unit_rows"]
