"""Selectors that give each example a score and keep the best: averaging, class quota and a random share are common."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from ..types import Coreset
from .averages import Averages
from .base import Selector, Warmup, Weights, uniform
from .check import one_of, share
from .chunk import Chunk
from .pool import Pool
from .quota import QUOTAS, Quota, best
from .ranking import Scored
from .selection import Selection

RANDOM_SHARE, GROUPS = 11, 12


class ScoredSelector(Selector):
    """Keeps the examples with the highest score; a subclass writes `score`. See INFUSE for the options."""

    def __init__(self, keep: float, every: int | None, warmup: Warmup, weights: Weights, quota: Quota,
                 smooth: float, random_share: float) -> None:  # fmt: skip
        super().__init__(keep, every, warmup)
        self.weights = one_of("weights", weights, ("online", "ema"))
        self.quota: Quota = one_of("quota", quota, QUOTAS)
        self.smooth = share("smooth", smooth, one=False)
        self.random_share = share("random_share", random_share)
        self.averages_ = Averages(self.smooth)

    def score(self, pool: Pool) -> dict[str, Tensor]:
        """Scan the pool; the columns of `verdict`, and "score": higher is kept first."""
        raise NotImplementedError

    def choose(self, pool: Pool, budget: int) -> Selection:
        """The best by average score, within the class quota, and a random share of the others."""
        columns = self.score(pool)
        columns["score"] = self.averages_.update(columns["score"], columns["weight"] > 0)
        rows = table(columns)
        return Selection(self.coreset(rows, budget, pool), rows)

    def coreset(self, rows: Scored, budget: int, pool: Pool) -> Coreset:
        """The best of these rows and a random share of the others."""
        drawn = round(self.random_share * budget)
        ids = self.pick(rows, budget - drawn, pool)
        others = np.setdiff1d(rows.ids, ids)
        return uniform(np.concatenate([ids, pool.rng(RANDOM_SHARE).choice(others, drawn, replace=False)]))

    def pick(self, rows: Scored, budget: int, pool: Pool) -> np.ndarray:
        """Ids of the best, within the class quota."""
        return best(rows, budget, self.quota, pool.task.classes)

    def state_dict(self) -> dict[str, Tensor]:
        """The averaged scores."""
        return self.averages_.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue the averages."""
        self.averages_.load_state_dict(state)


def verdict(chunk: Chunk) -> dict[str, Tensor]:
    """What every selector needs to know of an example."""
    return {"weight": chunk.weights, "confidence": chunk.confidence, "label": chunk.labels}


def table(columns: dict[str, Tensor]) -> Scored:
    """Scanned columns as rows in id order."""
    score = columns["score"].numpy()
    selected = columns["weight"].numpy() > 0
    return Scored(np.arange(len(score)), score, selected, columns["confidence"].numpy(), columns["label"].numpy())


def random_groups(pool: Pool) -> list[Tensor]:
    """The pool cut at random into groups of an unlabelled batch's size."""
    ids = torch.from_numpy(pool.rng(GROUPS).permutation(pool.size))
    return list(ids.split(max(1, min(pool.task.unlabelled_batch, pool.size))))


def shared_by_group(scores: Tensor, weights: Tensor, groups: list[Tensor]) -> Tensor:
    """Each group's score, Σ scores / Σ weights, given to its selected members."""
    shared = torch.zeros_like(scores)
    for group in groups:
        shared[group] = scores[group].sum() / weights[group].sum().clamp(min=1e-12)
    return shared * (weights > 0)


Granularity = Literal["example", "batch"]
GRANULARITIES = ("example", "batch")
