"""Selector, the base class of all core-set methods, and ScoredSelector, of those that keep the highest scores."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from ..errors import UserError
from ..types import Coreset, Task
from ..utils.params import HasOptions, integer, number
from ..utils.seeding import preserve_mode_and_rng
from .pool import Pool, PoolChunk
from .ranking import Scored, Selection, order

FirstInterval = Literal["random", "full", "score"]
ScoreWith = Literal["online", "ema"]
Granularity = Literal["example", "batch"]
Scores = Tensor | ArrayLike
Generators = Callable[[int], np.random.Generator]
"""Maps the key of a random stream to its generator, as `Pool.rng` does."""

GROUPS = 12  # key of a random stream
PAPER_INTERVAL = 40 / 1024  # as a fraction of the run


@dataclass(kw_only=True, eq=False, repr=False)
class Selector(HasOptions):
    """Keeps a part of the unlabeled pool. A subclass implements `choose` and declares its options as fields.

    Args:
        keep: fraction of the pool to keep, and of the optimizer steps to take.
        every: optimizer steps between refreshes; if None, 40/1024 of the run, or what a short run can afford.
        score_with: score with the "online" or the averaged ("ema") weights.
        first_interval: core set of the first interval, while the model is untrained: "random", the "full" pool, or
            "score" with the untrained model.

    Example:
        >>> import numpy as np
        >>> from vcc_infuse.selectors.base import uniform
        >>> from vcc_infuse.selectors.ranking import Selection
        >>> class FirstOnes(Selector):
        ...     def choose(self, pool, budget):
        ...         return Selection(uniform(np.arange(budget)))
        >>> FirstOnes(keep=0.2).budget(50)
        10
    """

    static: ClassVar[bool] = False
    """Whether the first core set is kept for the whole run."""
    restricts: ClassVar[bool] = True
    """Whether anything is left out at all."""

    keep: float = number(0.4, 0, 1, open_low=True)
    every: int | None = integer(None, 0)
    score_with: ScoreWith = "online"
    first_interval: FirstInterval = "random"
    selection_: Selection | None = field(default=None, init=False)
    """The result of the last `select`."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.extra_repr()})"

    @property
    def active(self) -> bool:
        """Whether there is anything to select: keeping everything is plain training."""
        return self.restricts and self.keep < 1

    def steps(self, full: int) -> int:
        """Optimizer steps to take where the full run takes `full`."""
        return max(1, round(self.keep * full))

    def schedule_steps(self, full: int) -> int:
        """The length of the learning-rate schedule."""
        return self.steps(full)

    def budget(self, size: int) -> int:
        """How many distinct examples to keep from a pool of `size`."""
        return max(1, round(self.keep * size)) if self.restricts else size

    def interval(self, task: Task) -> int:
        """Optimizer steps between refreshes: `every`, or the paper's fraction of the run.

        A short run has fewer refreshes, so that scanning the pool costs about a twentieth of the training: what is
        saved by training on less must not be spent on choosing it. There is at least one scan.
        """
        if self.every:
            return self.every
        # Costs in forward passes of one example; a backward pass counts as two.
        step_cost = 4 * task.unlabeled_batch_size + 3 * task.batch_size
        scan_cost = 2 * task.pool
        intervals = max(2, round(task.steps * step_cost / (20 * scan_cost)))
        return max(1, round(task.steps * PAPER_INTERVAL), math.ceil(task.steps / intervals))

    def first_coreset(self, size: int, budget: int, seed: int) -> Coreset | None:
        """The core set before the first scan; None is the whole pool. Not used if `first_interval` is "score"."""
        return None if self.first_interval == "full" else uniform(random_subset(size, budget, seed, 0))

    def select(self, pool: Pool, budget: int) -> Coreset:
        """Choose `budget` distinct pool ids and weights of mean 1, without changing modules or random states."""
        if not 1 <= budget <= pool.size:
            raise UserError(f"a core set of {budget} does not fit a pool of {pool.size}; change the selector's keep")
        if budget == pool.size:
            self.selection_ = Selection(uniform(np.arange(pool.size)))
        else:
            with preserve_mode_and_rng(pool.model, pool.ema, pool.algorithm, pool.calibrator, device=pool.device):
                self.selection_ = self.choose(pool.using(self.score_with), budget)
        return self.selection_.coreset

    def choose(self, pool: Pool, budget: int) -> Selection:
        """The selector's rule, called by `select` with all modules in eval mode."""
        raise NotImplementedError

    @property
    def resamples(self) -> bool:
        """Whether `resample` is called after each pass through the current core set."""
        return False

    def resample(self, pool: Pool, budget: int) -> Coreset:
        """Another core set from the scores of the last refresh, without a new scan of the pool."""
        raise NotImplementedError

    def direction(self, pool: Pool) -> Tensor | None:
        """The gradient that ranks images outside the pool, `(classes, width + 1)`; None if there is no such ranking."""
        return None

    def state_dict(self) -> dict[str, Tensor]:
        """State that is carried from one refresh to the next."""
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore what `state_dict` returned."""


def random_subset(size: int, budget: int, *key: int) -> np.ndarray:
    """`budget` distinct ids below `size` in ascending order, the same for the same key on every machine."""
    return np.sort(np.random.default_rng([*key, 77]).choice(size, budget, replace=False))


def uniform(ids: np.ndarray) -> Coreset:
    """A core set in which every example has weight 1."""
    return Coreset(torch.from_numpy(np.ascontiguousarray(ids)).long(), torch.ones(len(ids)))


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
