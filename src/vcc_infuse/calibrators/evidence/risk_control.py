"""Thresholds with a guarantee: conformal risk control (Angelopoulos et al., ICLR 2024) on out-of-fold predictions.

The loss of an example is 1 if its label is trusted and wrong. It falls as the threshold rises, so the lowest threshold
at which (losses + 1)/(examples + 1) ≤ α has an expected loss of at most α on a further example from the distribution
of the labeled ones. The guarantee is about all examples: at most a fraction α of the pool is trusted and wrong.
"""

import torch
from torch import Tensor


def risk_threshold(scores: Tensor, right: Tensor, max_error: float) -> Tensor:
    """The lowest threshold with the guarantee; scores above it are trusted. Infinite if there is none."""
    allowed = int(max_error * (len(scores) + 1) + 1e-9) - 1
    if allowed < 0:
        return scores.new_tensor(torch.inf)
    wrong = scores[~right].sort(descending=True).values
    return wrong[allowed] if allowed < len(wrong) else scores.new_tensor(-torch.inf)


def class_thresholds(scores: Tensor, labels: Tensor, right: Tensor, *, classes: int, max_error: float) -> Tensor:
    """A threshold for each class with enough labels for a guarantee of its own; one for all others together."""
    enough = torch.bincount(labels, minlength=classes) + 1 >= 2 / max_error
    thresholds = scores.new_empty(classes)
    rest = ~enough[labels]
    thresholds[~enough] = risk_threshold(scores[rest], right[rest], max_error)
    for label in enough.nonzero()[:, 0].tolist():
        members = labels == label
        thresholds[label] = risk_threshold(scores[members], right[members], max_error)
    return thresholds
