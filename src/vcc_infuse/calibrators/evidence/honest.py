"""What a head says about images whose label it was not shown: the examples from which reliability is learned."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...types import Step
from ..vcc.history import History, Visit
from .folds import FoldHeads
from .neighbors import FeatureMemory, support_of
from .reliability import Moments

FEW = 64  # pool rows on which the heads' own scale is measured


class HonestRows(nn.Module):
    """The last honest prediction for each labeled image: its evidence, its label, and whether that was right.

    `past` holds the heads' last predictions for the pool: for each example one distribution over pairs of head and
    class.
    """

    support: Tensor
    labels: Tensor
    right: Tensor

    def __init__(self, heads: FoldHeads, past: History) -> None:
        super().__init__()
        self.heads, self.past, self.moments = heads, past, Moments(2)
        labeled = len(heads.fold)
        self.register_buffer("support", torch.full((labeled, 2), torch.nan))
        self.register_buffer("labels", torch.full((labeled,), -1))
        self.register_buffer("right", torch.zeros(labeled, dtype=torch.bool))

    def rows(self) -> tuple[Tensor, Tensor, Tensor]:
        """Scaled evidence, predicted labels, and whether they are right."""
        known = self.labels >= 0
        return self.moments(self.support[known]), self.labels[known], self.right[known]

    @torch.no_grad()
    def observe(self, step: Step, memory: FeatureMemory, pool: Tensor, labeled: Tensor) -> None:
        """Store what the heads say about a batch, given its features."""
        pool_ids, ids, y = (step.gather(rows) for rows in (step.batch.pool_ids, step.batch.ids, step.batch.y))
        places = memory.pool + ids
        memory.write(places, step.gather(labeled))
        probs = self.heads(step.gather(pool)).softmax(2)
        self.past.write(pool_ids, probs.flatten(1) / self.heads.folds, step.number)
        self.moments.observe(self._support(probs[:FEW], memory, pool_ids[:FEW], step.number).flatten(0, 1))
        own = torch.arange(len(ids), device=ids.device), self.heads.fold[ids]
        said = self.heads(step.gather(labeled)).softmax(2)
        self.support[ids] = self._support(said, memory, places, step.number)[own]
        self.labels[ids] = said[own].argmax(1)
        self.right[ids] = self.labels[ids] == y

    def _support(self, probs: Tensor, memory: FeatureMemory, places: Tensor, now: int) -> Tensor:
        """The probability of each head's label by itself and by the neighbors, rows × heads × 2."""
        near = memory.mean_prediction(places, self.past, now)
        mean = (near.probs * self.heads.folds).view_as(probs)
        rows, folds, classes = probs.shape
        known = near.known[:, None].expand(rows, folds).flatten()
        return support_of(probs.reshape(-1, classes), Visit(mean.reshape(-1, classes), known)).view(rows, folds, 2)
