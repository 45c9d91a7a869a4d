"""Class probabilities that say a given confidence in the classifier's own label."""

from __future__ import annotations

import torch
from torch import Tensor


def move(probs: Tensor, confidence: Tensor) -> Tensor:
    """Set the label's entry to `confidence` and scale the others to fill the rest, in their old proportions.

    The label stays the largest entry: a confidence too low for that is raised to where the runner-up would overtake.
    """
    labels = probs.argmax(1, keepdim=True)
    others = probs.scatter(1, labels, 0)
    total = others.sum(1, keepdim=True)
    even = torch.full_like(probs, 1 / (probs.shape[1] - 1)).scatter(1, labels, 0)
    shares = torch.where(total > 1e-7, others / total.clamp_min(1e-7), even)
    second = shares.amax(1, keepdim=True)
    least = second / (1 + second) * (1 + 1e-5)
    confidence = torch.maximum(confidence[:, None], least).clamp(max=1)
    return (shares * (1 - confidence)).scatter(1, labels, confidence)
