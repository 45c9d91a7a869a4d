"""The controls of every core-set comparison: random subsets, and short runs on the whole pool."""

from dataclasses import dataclass, field

import numpy as np

from .base import FirstInterval, ScoreWith, Selector, random_subset, uniform
from .pool import Pool
from .ranking import Selection


@dataclass(kw_only=True, eq=False, repr=False)
class Control(Selector):
    """A selector that does not use the model, so its first interval is like any other.

    Args:
        keep: fraction of the optimizer steps to take and, where the pool is cut, of the pool.
    """

    score_with: ScoreWith = field(default="online", init=False)
    first_interval: FirstInterval = field(default="score", init=False)

    def choose(self, pool: Pool, budget: int) -> Selection:
        """Keep everything."""
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
