"""ClassMemory: the last rows of every class, as many for a rare class as for a frequent one."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ClassMemory(nn.Module):
    """`size` rows a class, the oldest overwritten first; shapes never change."""

    rows: Tensor
    pushed: Tensor

    def __init__(self, classes: int, size: int, width: int) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(classes, size, width))
        self.register_buffer("pushed", torch.zeros(classes, dtype=torch.long))

    @torch.no_grad()
    def push(self, rows: Tensor, labels: Tensor) -> None:
        """Store rows in their order; of more than `size` rows of a class the last stay."""
        classes, size, _ = self.rows.shape
        own = F.one_hot(labels, classes)
        place = own.cumsum(0).gather(1, labels[:, None])[:, 0] - 1
        count = own.sum(0)
        stay = place >= count[labels] - size
        slots = (self.pushed[labels] + place) % size
        self.rows[labels[stay], slots[stay]] = rows[stay].detach().float()
        self.pushed += count

    def means(self) -> Tensor:
        """The mean row of each class, zero for a class without rows."""
        # Rows that were never written are zero and add nothing.
        return self.rows.sum(1) / self.pushed.clamp(1, self.rows.shape[1])[:, None]

    @property
    def known(self) -> Tensor:
        """Which classes have rows."""
        return self.pushed > 0
