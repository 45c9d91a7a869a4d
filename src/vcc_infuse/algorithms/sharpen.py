"""Sharpening: make a distribution more certain of what it already prefers."""

from __future__ import annotations

import torch
from torch import Tensor


def sharpen(probs: Tensor, temperature: float) -> Tensor:
    """p^(1/T), each row summing to one again; the softmax of logits / T where p is the softmax of logits."""
    logs = probs.float().clamp(min=torch.finfo(torch.float32).tiny).log()
    return (logs / temperature).softmax(1)
