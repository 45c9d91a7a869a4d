"""The classifier's past predictions for each example of the pool."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

DENSE_CLASSES = 128  # up to this many classes it is worth keeping every probability


class Visit(NamedTuple):
    """Past class probabilities, and whether there are any recent enough to count."""

    probs: Tensor
    known: Tensor


class History(nn.Module):
    """Half-precision class probabilities of each pool id, with the step of its last visit.

    The `top_k` largest are kept (all if 0), and the rest is spread evenly. The running mean averages `window` visits; a
    visit no longer counts after `max_age` steps.
    """

    def __init__(self, pool: int, classes: int, *, top_k: int = 0, window: int = 1, max_age: int = 2**31 - 1) -> None:
        super().__init__()
        self.classes = classes
        self.window = window
        self.max_age = max_age
        self.top_k = top_k if 0 < top_k < classes else 0
        self.values = nn.Buffer(torch.zeros(pool, self.top_k or classes, dtype=torch.float16))
        small = torch.int16 if classes <= 2**15 else torch.int32
        self.classes_kept = nn.Buffer(torch.zeros(pool if self.top_k else 0, self.top_k, dtype=small))
        self.stamp = nn.Buffer(torch.full((pool,), -1, dtype=torch.int32))
        self.visits = nn.Buffer(torch.zeros(pool, dtype=torch.int16))

    def read(self, ids: Tensor, now: int) -> Visit:
        """The past predictions for the examples `ids`, as of step `now`."""
        values = self.values[ids].float()
        known = self._known(ids, now)
        if not self.top_k:
            return Visit(values, known)
        rest = self._rest(values)
        return Visit(rest.repeat(1, self.classes).scatter(1, self.classes_kept[ids].long(), values), known)

    def read_classes(self, ids: Tensor, classes: Tensor, now: int) -> Visit:
        """Of some classes, (rows, m), for examples (rows, k): probabilities (rows, m, k), and which are known."""
        known = self._known(ids, now)
        if not self.top_k:
            places = ids[:, None] * self.classes + classes[..., None]
            return Visit(self.values.flatten()[places].float(), known)
        values = self.values[ids].float()
        kept = self.classes_kept[ids][:, None] == classes[..., None, None]
        found = (values[:, None] * kept).sum(3)
        return Visit(torch.where(kept.any(3), found, self._rest(values)[:, None, :, 0]), known)

    def _known(self, ids: Tensor, now: int) -> Tensor:
        stamp = self.stamp[ids]
        return (stamp >= 0) & (now - stamp <= self.max_age)

    def _rest(self, values: Tensor) -> Tensor:
        """The probability of each class that is not kept."""
        return (1 - values.sum(-1, keepdim=True)).clamp_min(0) / (self.classes - self.top_k)

    @torch.no_grad()
    def write(self, ids: Tensor, probs: Tensor, now: int) -> None:
        """Store the prediction of step `now`; a past that is too old is dropped, not averaged in."""
        past = self.read(ids, now)
        visits = torch.where(past.known, self.visits[ids], 0).add(1).clamp(max=self.window)
        mean = torch.where(past.known[:, None], past.probs, probs)
        mean = mean + (probs - mean) / visits[:, None]
        if self.top_k:
            mean, kept = mean.topk(self.top_k, 1)
            self.classes_kept[ids] = kept.to(self.classes_kept.dtype)
        self.values[ids] = mean.half()
        self.stamp[ids] = now
        self.visits[ids] = visits
