"""Scores averaged over refreshes: one look through one augmentation is a noisy judge."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from ..types import Coreset
from ..validation import check_choice, check_range
from .base import Selector, Warmup, Weights, uniform
from .pool import Pool
from .pool_chunk import Chunk
from .ranking import QUOTAS, Quota, Scored, best
from .selection import Selection


class Averages:
    """A moving average of each example's score over the refreshes in which it was selected."""

    def __init__(self, smooth: float) -> None:
        self.smooth = smooth
        self.values: Tensor | None = None
        self.seen: Tensor | None = None

    def update(self, scores: Tensor, selected: Tensor) -> Tensor:
        """Take in new scores where selected; the first score of an example counts whole."""
        if self.smooth == 0:
            return scores
        if self.values is None or self.seen is None:
            self.values, self.seen = torch.zeros_like(scores), torch.zeros_like(selected)
        mean = torch.where(self.seen, scores.lerp(self.values, self.smooth), scores)
        self.values = torch.where(selected, mean, self.values)
        self.seen = self.seen | selected
        return torch.where(selected, self.values, scores)

    def state_dict(self) -> dict[str, Tensor]:
        """Tensors, or nothing before the first refresh."""
        if self.values is None or self.seen is None:
            return {}
        return {"values": self.values.clone(), "seen": self.seen.clone()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue where `state_dict` was taken."""
        values, seen = state.get("values"), state.get("seen")
        self.values = None if values is None else values.clone().cpu()
        self.seen = None if seen is None else seen.clone().cpu()


RANDOM_FRACTION, GROUPS = 11, 12


class ScoredSelector(Selector):
    """Keeps the examples with the highest score; a subclass writes `score`. See INFUSE for the options."""

    def __init__(self, keep: float, every: int | None, warmup: Warmup, weights: Weights, quota: Quota,
                 smooth: float, random_fraction: float) -> None:  # fmt: skip
        super().__init__(keep, every, warmup)
        self.weights = check_choice("weights", weights, ("online", "ema"))
        self.quota: Quota = check_choice("quota", quota, QUOTAS)
        self.smooth = check_range("smooth", smooth, 0, 1, open_high=True)
        self.random_fraction = check_range("random_fraction", random_fraction, 0, 1)
        self.averages_ = Averages(self.smooth)

    def score(self, pool: Pool) -> dict[str, Tensor]:
        """Scan the pool; the columns of `example_columns`, and "score": higher is kept first."""
        raise NotImplementedError

    def choose(self, pool: Pool, budget: int) -> Selection:
        """The best by average score, within the class quota, and a random share of the others."""
        columns = self.score(pool)
        columns["score"] = self.averages_.update(columns["score"], columns["weight"] > 0)
        rows = table(columns)
        return Selection(self.coreset(rows, budget, pool), rows)

    def coreset(self, rows: Scored, budget: int, pool: Pool) -> Coreset:
        """The best of these rows and a random share of the others."""
        drawn = round(self.random_fraction * budget)
        ids = self.pick(rows, budget - drawn, pool)
        others = np.setdiff1d(rows.ids, ids)
        return uniform(np.concatenate([ids, pool.rng(RANDOM_FRACTION).choice(others, drawn, replace=False)]))

    def pick(self, rows: Scored, budget: int, pool: Pool) -> np.ndarray:
        """Ids of the best, within the class quota."""
        return best(rows, budget, self.quota, pool.task.classes)

    def state_dict(self) -> dict[str, Tensor]:
        """The averaged scores."""
        return self.averages_.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue the averages."""
        self.averages_.load_state_dict(state)


def example_columns(chunk: Chunk) -> dict[str, Tensor]:
    """What every selector needs to know of an example."""
    return {"weight": chunk.weights, "confidence": chunk.confidence, "label": chunk.labels}


def table(columns: dict[str, Tensor]) -> Scored:
    """Scanned columns as rows in id order."""
    score = columns["score"].numpy()
    selected = columns["weight"].numpy() > 0
    return Scored(np.arange(len(score)), score, selected, columns["confidence"].numpy(), columns["label"].numpy())


def random_groups(pool: Pool) -> list[Tensor]:
    """The pool cut at random into groups of an unlabeled batch's size."""
    ids = torch.from_numpy(pool.rng(GROUPS).permutation(pool.size))
    return list(ids.split(max(1, min(pool.task.unlabeled_batch_size, pool.size))))


def shared_by_group(scores: Tensor, weights: Tensor, groups: list[Tensor]) -> Tensor:
    """Each group's score, Σ scores / Σ weights, given to its selected members."""
    shared = torch.zeros_like(scores)
    for group in groups:
        shared[group] = scores[group].sum() / weights[group].sum().clamp(min=1e-12)
    return shared * (weights > 0)


Granularity = Literal["example", "batch"]


GRANULARITIES = ("example", "batch")
