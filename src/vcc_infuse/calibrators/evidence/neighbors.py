"""Which examples of the pool look alike: a short code of each example's features, and its nearest neighbors by it."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...utils.neighbors import NearestRows
from ..history import History, Visit

CHUNK = 8192  # rows whose neighbors are looked up at a time
COLUMNS = 2**16  # pool rows that new images are compared with at a time


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
        codes = F.normalize(torch.addmm(self.center @ self.basis, features, self.basis, beta=-1))
        before = self.codes[ids].float()
        self.codes[ids] = torch.where(self.seen[ids][:, None], (before + codes) / 2, codes).half()
        self.seen[ids] = True

    @torch.no_grad()
    def find_neighbors(self) -> None:
        """Find the nearest neighbors of all examples seen so far, among the pool examples seen so far.

        Exact up to 50,000 pool examples; see `NearestRows`.
        """
        pool = self.seen[: self.pool].nonzero()[:, 0]
        rows = self.seen.nonzero()[:, 0]
        if len(pool) < self.neighbors + 2:
            return
        search = NearestRows(self._unit_codes(pool))
        for some in torch.split(rows, CHUNK):
            close = pool[search.of(self._unit_codes(some), self.neighbors + 1)]
            itself = close == some[:, None]
            # Among more exact copies than neighbors it may not be found; the last goes then. A labeled image has no
            # place in the pool, but the pool usually holds it as well, as the first.
            dropped = torch.where(itself.any(1), itself.int().argmax(1), self.neighbors)
            dropped = torch.where(some < self.pool, dropped, 0)
            kept = torch.arange(self.neighbors, device=some.device)
            self.nearest[some] = close.gather(1, kept + (kept >= dropped[:, None])).int()
        self.found[rows] = True

    def look_up(self, features: Tensor) -> Tensor:
        """The nearest pool examples of new images; those that were never seen come last.

        Of fixed shapes, so that it can be exported.
        """
        codes = F.normalize((features - self.center) @ self.basis)
        best: list[Tensor] = []
        places: list[Tensor] = []
        for start in range(0, self.pool, COLUMNS):  # in parts, because a batch against a large pool takes gigabytes
            part = slice(start, min(start + COLUMNS, self.pool))
            similarity = codes @ F.normalize(self.codes[part].float()).T
            similarity = similarity.masked_fill(~self.seen[part], -2.0)
            top = similarity.topk(min(self.neighbors, part.stop - start))
            best.append(top.values)
            places.append(top.indices + start)
        order = torch.cat(best, 1).topk(min(self.neighbors, self.pool)).indices
        return torch.cat(places, 1).gather(1, order)

    def _unit_codes(self, ids: Tensor) -> Tensor:
        codes = self.codes[ids].float()
        return codes.div_(codes.norm(dim=1, keepdim=True).clamp_min_(1e-12))

    def mean_prediction(self, ids: Tensor, classes: Tensor, history: History, now: int) -> Visit:
        """The mean of the last predictions for the neighbors of examples; unknown where there are none."""
        mean = mean_over(self.nearest[ids].long(), classes, history, now)
        return Visit(mean.probs, mean.known & self.found[ids])


def mean_over(nearest: Tensor, classes: Tensor, history: History, now: int = 0) -> Visit:
    """The mean of the last predictions for some examples per row, (rows, k), of those that count as of step `now`.

    Of the classes asked for, (rows, m): to read all of them takes most of the time of a step on a bank.
    """
    probs, known = history.read_classes(nearest, classes, now)
    weights = known.float()
    count = weights.sum(1)
    total = (probs * weights[:, None]).sum(2)
    return Visit(total / count.clamp_min(1)[:, None], count > 0)


def support_of(own: Tensor, *others: Visit) -> Tensor:
    """Probabilities of labels, (rows, m), by the rows themselves and by each of the others (NaN if unknown)."""
    columns = (torch.where(other.known[:, None], other.probs, torch.nan) for other in others)
    return torch.stack([own, *columns], 2)
