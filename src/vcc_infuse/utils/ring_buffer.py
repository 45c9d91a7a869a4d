"""Fixed-size first-in-first-out memories, held as buffers: they move with the module and are saved with it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RingBuffer(nn.Module):
    """The last `size` rows pushed, in named columns; shapes never change.

    Args:
        size: the number of rows.
        columns: the row shape and the dtype of each column.

    >>> buffer = RingBuffer(2, {"x": ((), torch.float)})
    >>> buffer.push(x=torch.tensor([1.0, 2.0, 3.0]))
    >>> buffer["x"], int(buffer.filled)
    (tensor([3., 2.]), 2)
    """

    cursor: Tensor
    pushed: Tensor

    def __init__(self, size: int, columns: Mapping[str, tuple[tuple[int, ...], torch.dtype]]) -> None:
        super().__init__()
        self.size = size
        self.names = tuple(columns)
        for name, (shape, dtype) in columns.items():
            self.register_buffer(f"column_{name}", torch.zeros((size, *shape), dtype=dtype))
        self.register_buffer("cursor", torch.zeros((), dtype=torch.long))
        self.register_buffer("pushed", torch.zeros((), dtype=torch.long))

    def __getitem__(self, name: str) -> Tensor:
        return self.get_buffer(f"column_{name}")

    @property
    def filled(self) -> Tensor:
        """Number of rows that hold data, as a tensor: reading it does not synchronize with the device."""
        return self.pushed.clamp(max=self.size)

    @property
    def valid(self) -> Tensor:
        """Mask of the rows that hold data, of shape (size,)."""
        return torch.arange(self.size, device=self.cursor.device) < self.filled

    @torch.no_grad()
    def push(self, **rows: Tensor) -> None:
        """Store a batch over the oldest rows; of a batch larger than the memory, the last rows stay."""
        count = len(next(iter(rows.values())))
        skip = max(0, count - self.size)
        slots = (self.cursor + torch.arange(skip, count, device=self.cursor.device)) % self.size
        for name in self.names:
            self[name][slots] = rows[name][skip:].detach().to(self[name].dtype)
        self.cursor.copy_((self.cursor + count) % self.size)
        self.pushed.add_(count)


class ClassMemory(nn.Module):
    """The last `size` rows of each class, of shape (classes, size, width); shapes never change."""

    rows: Tensor
    pushed: Tensor

    def __init__(self, classes: int, size: int, width: int) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(classes, size, width))
        self.register_buffer("pushed", torch.zeros(classes, dtype=torch.long))

    @torch.no_grad()
    def push(self, rows: Tensor, labels: Tensor) -> None:
        """Store rows in order; of more than `size` rows of one class, the last stay."""
        classes, size, _ = self.rows.shape
        members = F.one_hot(labels, classes)
        place = members.cumsum(0).gather(1, labels[:, None])[:, 0] - 1
        slots = labels * size + (self.pushed[labels] + place) % size
        # All rows that share a slot write the last of them: the order of writing does not matter, and no mask
        # synchronizes with the device.
        number = torch.arange(len(rows), device=rows.device)
        last = torch.zeros(classes * size, dtype=torch.long, device=rows.device)
        last.scatter_reduce_(0, slots, number, "amax")
        self.rows.view(classes * size, -1)[slots] = rows.detach().float()[last[slots]]
        self.pushed += members.sum(0)

    def means(self) -> Tensor:
        """The mean row of each class, of shape (classes, width); zero for a class without rows."""
        # Rows that were never written are zero and add nothing.
        return self.rows.sum(1) / self.pushed.clamp(1, self.rows.shape[1])[:, None]

    @property
    def known(self) -> Tensor:
        """Mask of the classes that have rows, of shape (classes,)."""
        return self.pushed > 0
