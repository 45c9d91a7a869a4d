"""ScoredSelector: keeps the highest scores, optionally averaged over refreshes, because one augmented view is noisy."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from ..errors import check_choice, check_range
from ..types import Coreset
from .base import SCORE_WITH, FirstInterval, ScoreWith, Selector, uniform
from .pool import Pool, PoolChunk
from .ranking import Scored, Selection, order

Granularity = Literal["example", "batch"]
GRANULARITIES = ("example", "batch")
GROUPS = 12  # key of a random stream


class ScoredSelector(Selector):
    """Keeps the examples with the highest score; a subclass writes `score`. See EL2N for the options."""

    def __init__(self, keep: float, every: int | None, first_interval: FirstInterval, score_with: ScoreWith,
                 score_momentum: float = 0.0) -> None:  # fmt: skip
        super().__init__(keep, every, first_interval)
        self.score_with = check_choice("score_with", score_with, SCORE_WITH)
        self.score_momentum = check_range("score_momentum", score_momentum, 0, 1, open_high=True)
        self.averages_ = ScoreAverages(self.score_momentum)

    def score(self, pool: Pool) -> dict[str, Tensor]:
        """Scan the pool; returns the columns of `example_columns` and "score" (higher is kept first)."""
        raise NotImplementedError

    def choose(self, pool: Pool, budget: int) -> Selection:
        """Scan the pool and keep the best by average score."""
        columns = self.score(pool)
        columns["score"] = self.averages_.update(columns["score"], columns["weight"] > 0)
        rows = table(columns)
        return Selection(self.coreset(rows, budget, pool), rows)

    def coreset(self, rows: Scored, budget: int, pool: Pool) -> Coreset:
        """The best of these rows."""
        return uniform(order(rows)[:budget])

    def state_dict(self) -> dict[str, Tensor]:
        """The averaged scores."""
        return self.averages_.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore the averaged scores."""
        self.averages_.load_state_dict(state)


class ScoreAverages:
    """A moving average of each example's score over the refreshes at which its pseudo label had weight."""

    def __init__(self, momentum: float) -> None:
        self.momentum = momentum
        self.values: Tensor | None = None
        self.seen: Tensor | None = None

    def update(self, scores: Tensor, selected: Tensor) -> Tensor:
        """Add new scores where selected; an example's first score is taken as it is."""
        if self.momentum == 0:
            return scores
        if self.values is None or self.seen is None:
            self.values, self.seen = torch.zeros_like(scores), torch.zeros_like(selected)
        mean = torch.where(self.seen, scores.lerp(self.values, self.momentum), scores)
        self.values = torch.where(selected, mean, self.values)
        self.seen = self.seen | selected
        return torch.where(selected, self.values, scores)

    def state_dict(self) -> dict[str, Tensor]:
        """Tensors; empty before the first refresh."""
        if self.values is None or self.seen is None:
            return {}
        return {"values": self.values.clone(), "seen": self.seen.clone()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore what `state_dict` returned."""
        values, seen = state.get("values"), state.get("seen")
        self.values = None if values is None else values.clone().cpu()
        self.seen = None if seen is None else seen.clone().cpu()


def example_columns(chunk: PoolChunk) -> dict[str, Tensor]:
    """The columns that every scoring selector needs."""
    return {"weight": chunk.weights, "confidence": chunk.confidence, "label": chunk.labels}


def table(columns: dict[str, Tensor]) -> Scored:
    """Scanned columns as rows in id order."""
    score = columns["score"].numpy()
    selected = columns["weight"].numpy() > 0
    return Scored(np.arange(len(score)), score, selected, columns["confidence"].numpy(), columns["label"].numpy())


def random_groups(pool: Pool) -> list[Tensor]:
    """The pool split at random into groups of the size of an unlabeled batch."""
    ids = torch.from_numpy(pool.rng(GROUPS).permutation(pool.size))
    return list(torch.split(ids, max(1, min(pool.task.unlabeled_batch_size, pool.size))))


def group_scores(scores: Tensor, weights: Tensor, groups: list[Tensor]) -> Tensor:
    """Each group's score, Σ scores / Σ weights, assigned to its members with weight."""
    shared = torch.zeros_like(scores)
    for group in groups:
        shared[group] = scores[group].sum() / weights[group].sum().clamp(min=1e-12)
    return shared * (weights > 0)
