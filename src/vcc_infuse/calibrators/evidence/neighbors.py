"""Which examples of the pool look alike: a short code of each example's features, and its nearest neighbors by it."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..history import History, Visit

CHUNK = 128  # rows compared with the whole pool at a time: their similarities should fit into a cache


class FeatureMemory(nn.Module):
    """Codes of the pool and, behind them, of the labeled images, and the nearest pool examples of each.

    A code is the position in the directions of largest variance of the first batch, scaled to unit length and averaged
    over visits with a factor of 1/2, so that it follows a network that learns. No example is its own neighbor.
    """

    def __init__(self, pool: int, *, labeled: int, width: int, code_size: int, neighbors: int) -> None:
        super().__init__()
        self.pool = pool
        self.neighbors = neighbors
        self.based = False
        size = min(code_size, width)
        self.basis = nn.Buffer(torch.zeros(width, size))
        self.center = nn.Buffer(torch.zeros(width))
        self.codes = nn.Buffer(torch.zeros(pool + labeled, size, dtype=torch.float16))
        self.seen = nn.Buffer(torch.zeros(pool + labeled, dtype=torch.bool))
        self.nearest = nn.Buffer(torch.zeros(pool + labeled, neighbors, dtype=torch.int32))
        self.found = nn.Buffer(torch.zeros(pool + labeled, dtype=torch.bool))

    @torch.no_grad()
    def write(self, ids: Tensor, features: Tensor) -> None:
        """Add the features of one visit."""
        if not self.based:  # checked once per process, because the check makes a GPU wait
            self.based = True
            if not self.basis.any():
                self.center.copy_(features.mean(0))
                directions = torch.linalg.svd(features - self.center, full_matrices=False).Vh[: self.basis.shape[1]]
                self.basis[:, : len(directions)] = directions.T
        codes = F.normalize((features - self.center) @ self.basis)
        before = self.codes[ids].float()
        self.codes[ids] = torch.where(self.seen[ids][:, None], (before + codes) / 2, codes).half()
        self.seen[ids] = True

    @torch.no_grad()
    def find_neighbors(self) -> None:
        """Find the nearest neighbors of all examples seen so far, among the pool examples seen so far."""
        pool = self._seen_pool()
        rows = self.seen.nonzero()[:, 0]
        if len(pool) < self.neighbors + 2:
            return
        target = self._target(pool)
        for some in torch.split(rows, CHUNK):
            close = pool[nearest(F.normalize(self.codes[some].float()), target, self.neighbors + 1)]
            itself = torch.where((some < self.pool)[:, None], close == some[:, None], False)
            itself[:, -1] |= (some < self.pool) & ~itself.any(1)  # among more exact copies than neighbors
            itself[:, 0] |= some >= self.pool  # the pool usually holds the labeled images as well
            self.nearest[some] = close[~itself].view(len(some), -1).int()
        self.found[rows] = True

    def look_up(self, features: Tensor) -> Tensor:
        """The nearest pool examples of new images; those that were never seen come last.

        Of fixed shapes, so that it can be exported.
        """
        codes = F.normalize((features - self.center) @ self.basis)
        similarity = codes @ F.normalize(self.codes[: self.pool].float()).T
        similarity = similarity.masked_fill(~self.seen[: self.pool], -2.0)
        return similarity.topk(min(self.neighbors, self.pool)).indices

    def _seen_pool(self) -> Tensor:
        return self.seen[: self.pool].nonzero()[:, 0]

    def _target(self, pool: Tensor) -> Tensor:
        return F.normalize(self.codes[pool].float()).T.contiguous()

    def mean_prediction(self, ids: Tensor, history: History, now: int) -> Visit:
        """The mean of the last predictions for the neighbors of examples; unknown where there are none."""
        mean = mean_over(self.nearest[ids].long(), history, now)
        return Visit(mean.probs, mean.known & self.found[ids])


def nearest(codes: Tensor, target: Tensor, count: int) -> Tensor:
    """The columns of `target` most similar to each row, in order; exact, by one matrix product."""
    return (codes @ target).topk(count).indices


def mean_over(nearest: Tensor, history: History, now: int = 0) -> Visit:
    """The mean of the last predictions for some examples per row, of those that count as of step `now`."""
    probs, known = history.read(nearest.flatten(), now)
    weights = known.view(nearest.shape).float()
    total = (probs.view(*nearest.shape, history.classes) * weights[..., None]).sum(1)
    count = weights.sum(1)
    return Visit(total / count.clamp_min(1)[:, None], count > 0)


def support_of(probs: Tensor, *others: Visit) -> Tensor:
    """The probability of the most likely class, by the rows themselves and by each of the others (NaN if unknown)."""
    labels = probs.argmax(1, keepdim=True)
    columns = (torch.where(other.known, other.probs.gather(1, labels)[:, 0], torch.nan) for other in others)
    return torch.stack([probs.gather(1, labels)[:, 0], *columns], 1)
