"""Thresholds with a promise: conformal risk control (Angelopoulos et al., ICLR 2024) on honest labels.

The loss of an example is 1 if its label is trusted and wrong. It falls as the threshold rises, so the lowest threshold
at which (losses + 1)/(examples + 1) ≤ α has an expected loss of at most α on a further example that is drawn like the
labeled ones. The promise is about all examples: at most a part α of the pool is trusted and wrong.
"""

from __future__ import annotations

import torch
from torch import Tensor


def risk_threshold(scores: Tensor, right: Tensor, max_error: float) -> Tensor:
    """The lowest threshold that keeps the promise, above which scores are trusted; infinite if none does."""
    allowed = int(max_error * (len(scores) + 1) + 1e-9) - 1
    if allowed < 0:
        return scores.new_tensor(torch.inf)
    wrong = scores[~right].sort(descending=True).values
    return wrong[allowed] if allowed < len(wrong) else scores.new_tensor(-torch.inf)


def class_thresholds(scores: Tensor, labels: Tensor, right: Tensor, classes: int, max_error: float) -> Tensor:
    """A threshold for each class that has enough labels for a promise of its own; one for all others together."""
    enough = torch.bincount(labels, minlength=classes) + 1 >= 2 / max_error
    found = scores.new_empty(classes)
    rest = ~enough[labels]
    found[~enough] = risk_threshold(scores[rest], right[rest], max_error)
    for label in enough.nonzero()[:, 0].tolist():
        own = labels == label
        found[label] = risk_threshold(scores[own], right[own], max_error)
    return found
