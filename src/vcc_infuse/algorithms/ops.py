"""Functions shared by several methods: sharpening, labeled loss, schedules, repeated ids."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def sharpen(probs: Tensor, temperature: float) -> Tensor:
    """p^(1/T), normalized per row; equals softmax(logits / T) where p is softmax(logits)."""
    logs = probs.float().clamp(min=torch.finfo(torch.float32).tiny).log()
    return (logs / temperature).softmax(1)


def last_occurrence(ids: Tensor, eligible: Tensor | None = None) -> Tensor:
    """For each row, the position of the last row with the same id, or of the last eligible one if there is any.

    `table[ids] = values[last_occurrence(ids)]` is deterministic on every device, although ids may repeat.
    """
    keys = ids if eligible is None else 2 * ids + eligible.long()
    order = torch.argsort(keys, stable=True)
    ends = torch.searchsorted(ids[order], ids, right=True)
    return order[ends - 1]


def labeled_loss(logits: Tensor, y: Tensor) -> Tensor:
    """Mean cross entropy in float32, also under autocast."""
    return F.cross_entropy(logits.float(), y)


def ramp(progress: float, fraction: float) -> float:
    """A linear rise from 0 to 1 over the first `fraction` of the run."""
    return min(1.0, progress / fraction) if fraction > 0 else 1.0


def epoch_steps(steps: int) -> int:
    """An epoch in the papers' sense: 1,024 optimizer steps, or one twentieth of a shorter run."""
    return min(1024, math.ceil(steps / 20))
