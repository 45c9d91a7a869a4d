"""What the classifier said of each example of the pool at its last visits."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn


class Visit(NamedTuple):
    """Past class probabilities, and whether there are any that still count."""

    probs: Tensor
    known: Tensor


class History(nn.Module):
    """Half-precision class probabilities of each pool id, with the step of its last visit.

    `top` classes are kept of each example (the rest share what is left evenly); all of them if it is 0.
    The mean of the last `window` visits is kept as a running mean. A visit more than `stale` steps ago does not count.
    """

    values: Tensor
    classes_kept: Tensor
    stamp: Tensor
    visits: Tensor

    def __init__(self, pool: int, classes: int, top: int = 0, window: int = 1, stale: int = 2**31 - 1) -> None:
        super().__init__()
        self.classes, self.window, self.stale = classes, window, stale
        self.top = top if 0 < top < classes else 0
        self.register_buffer("values", torch.zeros(pool, self.top or classes, dtype=torch.float16))
        small = torch.int16 if classes <= 2**15 else torch.int32
        self.register_buffer("classes_kept", torch.zeros(pool if self.top else 0, self.top, dtype=small))
        self.register_buffer("stamp", torch.full((pool,), -1, dtype=torch.int32))
        self.register_buffer("visits", torch.zeros(pool, dtype=torch.int16))

    def read(self, ids: Tensor, now: int) -> Visit:
        """The past of the examples `ids`, as seen from step `now`."""
        stamp = self.stamp[ids]
        known = (stamp >= 0) & (now - stamp <= self.stale)
        return Visit(self._dense(ids), known)

    @torch.no_grad()
    def write(self, ids: Tensor, probs: Tensor, now: int) -> None:
        """Note what is said at step `now`; a stale past is forgotten, not averaged in."""
        past = self.read(ids, now)
        visits = torch.where(past.known, self.visits[ids], 0).add(1).clamp(max=self.window)
        mean = torch.where(past.known[:, None], past.probs, probs)
        self._store(ids, mean + (probs - mean) / visits[:, None])
        self.stamp[ids] = now
        self.visits[ids] = visits

    def _dense(self, ids: Tensor) -> Tensor:
        values = self.values[ids].float()
        if not self.top:
            return values
        rest = (1 - values.sum(1, keepdim=True)).clamp_min(0) / (self.classes - self.top)
        return rest.repeat(1, self.classes).scatter(1, self.classes_kept[ids].long(), values)

    def _store(self, ids: Tensor, probs: Tensor) -> None:
        if self.top:
            probs, kept = probs.topk(self.top, 1)
            self.classes_kept[ids] = kept.to(self.classes_kept.dtype)
        self.values[ids] = probs.half()
