"""The controls of every core-set comparison: random subsets, and short runs on the whole pool."""

from __future__ import annotations

import numpy as np

from .base import Selector, random_subset, uniform
from .pool import Pool
from .ranking import Selection


class Control(Selector):
    """A selector that does not use the model, so its first interval is like any other.

    Args:
        keep: fraction of the optimizer steps to take and, where the pool is cut, of the pool.
        every: optimizer steps between refreshes; if None, 40/1024 of the run, or what a short run can afford.
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
        """The same subset at every step."""
        return Selection(uniform(random_subset(pool.size, budget, pool.seed)))


class RandomOnline(Control):
    """A new random subset at every refresh."""

    def choose(self, pool: Pool, budget: int) -> Selection:
        """A subset that depends on the step."""
        return Selection(uniform(random_subset(pool.size, budget, pool.seed, pool.number)))


class EarlyStop(Control):
    """The whole pool, stopped after `keep` of the steps; the learning rate follows the schedule of the full run."""

    restricts = False

    def schedule_steps(self, full: int) -> int:
        """The full run's schedule."""
        return full


class FullShort(Control):
    """The whole pool for `keep` of the steps, with the schedule compressed: the baseline that selection must beat."""

    restricts = False
