"""Small operations that several methods share."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def sharpen(probs: Tensor, temperature: float) -> Tensor:
    """p^(1/T), each row summing to one again; the softmax of logits / T where p is the softmax of logits."""
    logs = probs.float().clamp(min=torch.finfo(torch.float32).tiny).log()
    return (logs / temperature).softmax(1)


def last_occurrence(ids: Tensor, eligible: Tensor | None = None) -> Tensor:
    """For each row, the position of the last row with the same id: the last eligible one, where there is one.

    Writing `values[last_occurrence(ids)]` at `ids` gives the same result on every device, whatever the order of writing.
    """
    keys = ids if eligible is None else 2 * ids + eligible.long()
    order = torch.argsort(keys, stable=True)
    ends = torch.searchsorted(ids[order], ids, right=True)
    return order[ends - 1]


def labeled_loss(logits: Tensor, y: Tensor) -> Tensor:
    """Mean cross entropy in float32, whatever the precision of the forward."""
    return F.cross_entropy(logits.float(), y)


def ramp(progress: float, share: float) -> float:
    """Rise linearly from 0 to 1 over the first `share` of the run."""
    return min(1.0, progress / share) if share > 0 else 1.0


def epoch_steps(steps: int) -> int:
    """What the papers call an epoch: 1,024 optimizer steps, or a twentieth of a shorter run."""
    return min(1024, math.ceil(steps / 20))
