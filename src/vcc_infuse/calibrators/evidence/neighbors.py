"""Which examples of the pool look alike: a short code of each example's features, and its nearest neighbors by it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..vcc.history import History, Visit

CHUNK = 1024  # rows compared with the whole pool at a time


class FeatureMemory(nn.Module):
    """Codes of the pool and, behind them, of the labeled images, and the nearest pool examples of each.

    A code is the position in the directions of largest variance of the first batch, scaled to unit length and averaged
    over visits with a factor of 1/2, so that it follows a network that learns. An example is no neighbor of its own.
    """

    basis: Tensor
    center: Tensor
    codes: Tensor
    seen: Tensor
    nearest: Tensor
    found: Tensor

    def __init__(self, pool: int, labeled: int, width: int, code_size: int, neighbors: int) -> None:
        super().__init__()
        self.pool, self.neighbors, size = pool, neighbors, min(code_size, width)
        self.based = False
        self.register_buffer("basis", torch.zeros(width, size))
        self.register_buffer("center", torch.zeros(width))
        self.register_buffer("codes", torch.zeros(pool + labeled, size, dtype=torch.float16))
        self.register_buffer("seen", torch.zeros(pool + labeled, dtype=torch.bool))
        self.register_buffer("nearest", torch.zeros(pool + labeled, neighbors, dtype=torch.int32))
        self.register_buffer("found", torch.zeros(pool + labeled, dtype=torch.bool))

    @torch.no_grad()
    def write(self, ids: Tensor, features: Tensor) -> None:
        """Add the features of one visit."""
        if not self.based:  # asked once per process, because the answer makes a GPU wait
            self.based = True
            if not self.basis.any():
                self._choose_basis(features)
        codes = F.normalize((features - self.center) @ self.basis)
        before = self.codes[ids].float()
        self.codes[ids] = torch.where(self.seen[ids][:, None], (before + codes) / 2, codes).half()
        self.seen[ids] = True

    def _choose_basis(self, features: Tensor) -> None:
        self.center.copy_(features.mean(0))
        directions = torch.linalg.svd(features - self.center, full_matrices=False).Vh[: self.basis.shape[1]]
        self.basis[:, : len(directions)] = directions.T

    @torch.no_grad()
    def find_neighbors(self) -> None:
        """Find the nearest neighbors of all examples seen so far, among the pool examples seen so far."""
        rows = self.seen.nonzero()[:, 0]
        if int(self.seen[: self.pool].sum()) < self.neighbors + 2:
            return
        for some in torch.split(rows, CHUNK):
            own = torch.where(some < self.pool, some, -1)
            self.nearest[some] = self._nearest(F.normalize(self.codes[some].float()), own).int()
        self.found[rows] = True

    def look_up(self, features: Tensor) -> Tensor:
        """The nearest pool examples of new images."""
        return self._nearest(F.normalize((features - self.center) @ self.basis))

    def _nearest(self, codes: Tensor, own: Tensor | None = None) -> Tensor:
        """Exact, by one matrix product. `own` is the place of each row in the pool, or −1.

        Most often the pool holds a labeled image as well, which then is its own nearest neighbor: it is left out.
        """
        similarity = codes @ F.normalize(self.codes[: self.pool].float()).T
        similarity = similarity.masked_fill(~self.seen[: self.pool], -2)
        if own is None:
            return similarity.topk(self.neighbors).indices
        similarity.scatter_(1, torch.where(own < 0, similarity.argmax(1), own)[:, None], -2)
        return similarity.topk(self.neighbors).indices

    def mean_prediction(self, ids: Tensor, history: History, now: int) -> Visit:
        """The mean of the last predictions for the neighbors of examples; unknown where there are none."""
        mean = mean_over(self.nearest[ids].long(), history, now)
        return Visit(mean.probs, mean.known & self.found[ids])


def mean_over(nearest: Tensor, history: History, now: int = 0) -> Visit:
    """The mean of the last predictions for some examples per row, of those that count as of step `now`."""
    probs, known = history.read(nearest.flatten(), now)
    weights = known.view(nearest.shape).float()
    total = (probs.view(*nearest.shape, history.classes) * weights[..., None]).sum(1)
    count = weights.sum(1)
    return Visit(total / count.clamp_min(1)[:, None], count > 0)


def support_of(probs: Tensor, near: Visit) -> Tensor:
    """The probability of the most likely class, by the rows themselves and by their neighbors (NaN if unknown)."""
    labels = probs.argmax(1, keepdim=True)
    by_neighbors = torch.where(near.known, near.probs.gather(1, labels)[:, 0], torch.nan)
    return torch.stack([probs.gather(1, labels)[:, 0], by_neighbors], 1)
