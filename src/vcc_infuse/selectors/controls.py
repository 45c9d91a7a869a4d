"""The controls of every core-set table, and EL2N (Paul et al., NeurIPS 2021), which keeps the largest errors."""

from __future__ import annotations

import numpy as np

from .base import Selector, random_subset, uniform
from .pool import Pool
from .selection import Selection


class Control(Selector):
    """A selector that asks the model nothing, so that there is nothing to warm up for.

    Args:
        keep: share of the optimizer steps to take and, where the pool is cut, of the pool.
        every: steps between refreshes; if not given, 40/1024 of the run, or what a short run can afford.
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
