"""The controls of every core-set table, and EL2N (Paul et al., NeurIPS 2021), which keeps the largest errors."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from .base import Selector, Warmup, Weights, random_subset, uniform
from .pool import Pool
from .quota import Quota
from .scored import ScoredSelector, verdict
from .selection import Selection


class Control(Selector):
    """A selector that asks the model nothing, so that there is nothing to warm up for.

    Args:
        keep: share of the optimiser steps to take and, where the pool is cut, of the pool.
        every: epochs between refreshes; if not given, 40 of 1024, or what a short run can afford.
    """

    def __init__(self, keep: float = 0.4, every: int | None = None) -> None:
        super().__init__(keep, every, "score")

    def choose(self, pool: Pool, budget: int) -> Selection:
        """Everything."""
        return Selection(uniform(np.arange(pool.size)))


class Random(Control):
    """One random subset, kept for the whole run."""

    static = True

    def choose(self, pool: Pool, budget: int) -> Selection:
        """The same draw at every step."""
        return Selection(uniform(random_subset(pool.size, budget, pool.seed)))


class RandomOnline(Control):
    """A new random subset at every refresh."""

    def choose(self, pool: Pool, budget: int) -> Selection:
        """A draw for this step."""
        return Selection(uniform(random_subset(pool.size, budget, pool.seed, pool.number)))


class EarlyStop(Control):
    """The whole pool, stopped at `keep` of the steps; the learning rate still follows the full schedule."""

    restricts = False

    def schedule_steps(self, full: int) -> int:
        """The full run's schedule."""
        return full


class FullShort(Control):
    """The whole pool for `keep` of the steps, with the schedule compressed: all that selection has to beat."""

    restricts = False


class EL2N(ScoredSelector):
    """Keeps the largest distance between the learning view's probabilities and the pseudo label of the weak one.

    Measured on one view against its own label, the distance would only be low confidence by another name.

    Args:
        keep: share of the pool to keep, and of the optimiser steps to take.
        every: epochs between refreshes; if not given, 40 of 1024, or what a short run can afford.
        weights: score with the "online" or the averaged ("ema") weights.
        quota: share the budget among pseudo classes: "none", "proportional" to their counts, or "equal".
        smooth: factor of past refreshes in a moving average of the scores (the original averages over networks).
        random_share: part of the budget that is drawn at random from what the ranking leaves.
        warmup: core set of the first interval: "random", the "full" pool, or "score" with the untrained model.
    """

    def __init__(
        self,
        keep: float = 0.4,
        every: int | None = None,
        weights: Weights = "online",
        quota: Quota = "none",
        smooth: float = 0.5,
        random_share: float = 0.0,
        warmup: Warmup = "random",
    ) -> None:
        super().__init__(keep, every, warmup, weights, quota, smooth, random_share)

    def score(self, pool: Pool) -> dict[str, Tensor]:
        """The length of the error vector, which already carries the pseudo label's weight."""
        return pool.scan(lambda chunk: {"score": chunk.errors.norm(dim=1), **verdict(chunk)})
