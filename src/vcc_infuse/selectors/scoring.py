"""ScoredSelector: keeps the highest scores, optionally averaged over refreshes, because one augmented view is noisy."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from ..types import Coreset
from .base import Selector, uniform
from .pool import Pool, PoolChunk
from .ranking import Scored, Selection, order

Granularity = Literal["example", "batch"]
Scores = Tensor | ArrayLike
Generators = Callable[[int], np.random.Generator]
"""Maps the key of a random stream to its generator, as `Pool.rng` does."""
GROUPS = 12  # key of a random stream


@dataclass(kw_only=True, eq=False, repr=False)
class ScoredSelector(Selector):
    """Keeps the examples with the highest scores; a subclass implements `score_pool`.

    A subclass makes `score_momentum`, the factor of past refreshes in a moving average of the scores, an option by
    declaring it again.
    """

    score_momentum: float = field(default=0.0, init=False)
    averages_: Tensor | None = field(default=None, init=False)
    seen_: Tensor | None = field(default=None, init=False)

    def score_pool(self, pool: Pool) -> dict[str, Tensor]:
        """Scan the pool; returns the columns of `example_columns` and "score", `(pool,)` each; higher is kept first."""
        raise NotImplementedError

    def choose(self, pool: Pool, budget: int) -> Selection:
        """Scan the pool and keep the best by average score."""
        columns = self.score_pool(pool)
        if self.score_momentum:
            columns["score"] = self._averaged(columns["score"], columns["weight"] > 0)
        rows = table(columns)
        return Selection(self.coreset(rows, budget, classes=pool.task.classes, rng=pool.rng), rows)

    def choose_from(
        self, scores: Scores, *, labels: Scores | None = None, confidence: Scores | None = None, seed: int = 0
    ) -> Tensor:
        """The core set of a pool that was scored elsewhere, for a training loop of your own.

        Args:
            scores: `(pool,)`, larger is kept first. Examples of score −inf are kept only if nothing else is left.
            labels: pseudo classes, `(pool,)`, for a selector with a class quota.
            confidence: `(pool,)`, decides among equal scores; without it the lower id wins.
            seed: seed of a selector that draws at random.

        Returns:
            The pool ids to keep, `(round(keep · pool),)`, best first.

        Example:
            >>> from vcc_infuse import INFUSE
            >>> INFUSE(keep=0.5).choose_from([0.1, -2.0, 0.3, 0.2])
            tensor([2, 3])
        """
        score = _to_numpy(scores)
        size = len(score)
        rows = Scored(
            ids=np.arange(size),
            scores=score,
            selected=score != -np.inf,
            confidence=np.zeros(size) if confidence is None else _to_numpy(confidence),
            labels=np.zeros(size, dtype=np.int64) if labels is None else _to_numpy(labels),
        )

        def rng(purpose: int) -> np.random.Generator:
            return np.random.default_rng([seed, purpose])

        return self.coreset(rows, self.budget(size), classes=int(rows.labels.max()) + 1, rng=rng).ids

    def coreset(self, rows: Scored, budget: int, *, classes: int, rng: Generators) -> Coreset:
        """The core set among scored rows, which are the pool in id order: the `budget` best."""
        return uniform(order(rows)[:budget])

    def _averaged(self, scores: Tensor, selected: Tensor) -> Tensor:
        """Moving averages over the refreshes at which an example was selected; its first score is taken as it is."""
        if self.averages_ is None or self.seen_ is None:
            self.averages_ = torch.zeros_like(scores)
            self.seen_ = torch.zeros_like(selected)
        mean = torch.where(self.seen_, scores.lerp(self.averages_, self.score_momentum), scores)
        self.averages_ = torch.where(selected, mean, self.averages_)
        self.seen_ = self.seen_ | selected
        return torch.where(selected, self.averages_, scores)

    def state_dict(self) -> dict[str, Tensor]:
        """The averaged scores; empty before the first refresh."""
        if self.averages_ is None or self.seen_ is None:
            return {}
        return {"values": self.averages_.clone(), "seen": self.seen_.clone()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore the averaged scores."""
        self.averages_ = state["values"].cpu().clone() if "values" in state else None
        self.seen_ = state["seen"].cpu().clone() if "seen" in state else None


def _to_numpy(values: Scores) -> np.ndarray:
    array: np.ndarray = torch.as_tensor(values).detach().cpu().numpy()
    return array


def example_columns(chunk: PoolChunk) -> dict[str, Tensor]:
    """The columns that every scoring selector needs."""
    return {"weight": chunk.weights, "confidence": chunk.confidence, "label": chunk.labels}


def gradient_columns(chunk: PoolChunk) -> dict[str, Tensor]:
    """The columns of selectors that compare gradients: their factors as well."""
    return {"features": chunk.outputs.features, "errors": chunk.errors, **example_columns(chunk)}


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
