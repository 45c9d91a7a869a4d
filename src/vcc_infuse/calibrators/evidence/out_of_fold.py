"""What a head says about images whose label it was not shown: the examples from which reliability is learned."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...types import Step
from ..history import History, Visit
from .fold_heads import FoldHeads
from .logistic import NormalScores
from .neighbors import FeatureMemory, support_of

FEW = 64  # pool rows of a batch among which what the heads say is ranked
RECENT = 16  # batches of labels: what a head said before, it said when it knew less


class HonestRows(nn.Module):
    """The last honest prediction for each labeled image: its evidence, its label, and whether that was right.

    Images of older batches do not count: a head that still learns was wrong more often when it judged them.

    `past` holds the heads' last predictions for the pool and, behind it, for the labeled images: for each example one
    distribution over pairs of head and class. `witness` has heads by the same folds that never see pseudo labels.
    """

    evidence: Tensor
    labels: Tensor
    right: Tensor
    batch: Tensor
    batches: Tensor

    def __init__(self, scores: tuple[str, ...], heads: FoldHeads, witness: FoldHeads | None, past: History) -> None:
        super().__init__()
        self.scores, self.heads, self.witness, self.past = scores, heads, witness, past
        labeled, columns = len(heads.fold), 1 + len(scores)
        self.ranks = NormalScores(columns)
        self.register_buffer("evidence", torch.zeros(labeled, columns))
        self.register_buffer("labels", torch.full((labeled,), -1))
        self.register_buffer("right", torch.zeros(labeled, dtype=torch.bool))
        self.register_buffer("batch", torch.full((labeled,), -RECENT))
        self.register_buffer("batches", torch.tensor(0))

    def rows(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Ranked evidence, predicted labels, whether they are right, and the folds."""
        recent = self.batch > self.batches - RECENT
        return self.evidence[recent], self.labels[recent], self.right[recent], self.heads.fold[recent]

    def loss(self, step: Step, labeled: Tensor, weak: Tensor, strong: Tensor) -> Tensor:
        """The loss of all heads, given the features of a batch."""
        batch = step.batch
        loss = self.heads.loss(labeled, batch.y, step.gather, batch.ids, weak, strong)
        if self.witness is None:
            return loss
        return loss + self.witness.loss(labeled, batch.y, step.gather, batch.ids, weak[:0], strong[:0])

    @torch.no_grad()
    def observe(self, step: Step, memory: FeatureMemory, pool: Tensor, labeled: Tensor) -> None:
        """Store what the heads say about a batch, given its features."""
        pool_ids, ids, y = (step.gather(rows) for rows in (step.batch.pool_ids, step.batch.ids, step.batch.y))
        pool, labeled, places = step.gather(pool), step.gather(labeled), memory.pool + ids
        memory.write(places, labeled)
        probs, said = self.heads(pool).softmax(2), self.heads(labeled).softmax(2)
        self.ranks.observe(self._support(probs[:FEW], pool[:FEW], memory, pool_ids[:FEW], step.number).flatten(0, 1))
        own = torch.arange(len(ids), device=ids.device), self.heads.fold[ids]
        self.evidence[ids] = self.ranks(self._support(said, labeled, memory, places, step.number)[own])
        self.labels[ids] = said[own].argmax(1)
        self.right[ids] = self.labels[ids] == y
        self.batches.add_(1)
        self.batch[ids] = self.batches
        joint = torch.cat([probs, said]).flatten(1) / self.heads.folds
        self.past.write(torch.cat([pool_ids, places]), joint, step.number)

    def _support(self, probs: Tensor, features: Tensor, memory: FeatureMemory, places: Tensor, now: int) -> Tensor:
        """The probability of each head's label by itself and by the other evidence, rows × heads × columns."""
        rows, folds, classes = probs.shape
        others = (self._said(score, features, memory, places, now) for score in self.scores)
        each = (
            Visit((said.probs * folds).view(-1, classes), said.known[:, None].expand(rows, folds).flatten())
            for said in others
        )
        return support_of(probs.reshape(-1, classes), *each).view(rows, folds, -1)

    def _said(self, score: str, features: Tensor, memory: FeatureMemory, places: Tensor, now: int) -> Visit:
        """One piece of evidence: a distribution over pairs of head and class for each row."""
        if score == "neighbors":
            return memory.mean_prediction(places, self.past, now)
        if score == "visits" or self.witness is None:
            return self.past.read(places, now)
        said = self.witness(features).softmax(2).flatten(1) / self.heads.folds
        return Visit(said, torch.ones_like(places, dtype=torch.bool))
