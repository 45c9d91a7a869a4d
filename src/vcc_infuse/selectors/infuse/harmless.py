"""A draw among the harmless instead of a ranking: only what would do harm is left out, and the draw can be repeated."""

from __future__ import annotations

from typing import Literal

import numpy as np
from torch import Tensor

from ...types import Coreset
from ...validation import check_choice
from ..base import Warmup, Weights, random_subset, uniform
from ..pool import Pool
from ..ranking import Quota, Scored, best, known, restored_rows, rows_state
from ..scoring import ScoredSelector
from ..selection import Selection

LOTTERY = 22


Take = Literal["best", "harmless"]


class HarmlessSampler(ScoredSelector):
    """A selector whose negative scores mean harm. See INFUSE for the options."""

    def __init__(self, keep: float, every: int | None, warmup: Warmup, weights: Weights, quota: Quota,
                 smooth: float, random_fraction: float, take: Take, redraw: bool) -> None:  # fmt: skip
        super().__init__(keep, every, warmup, weights, quota, smooth, random_fraction)
        self.take = check_choice("take", take, ("best", "harmless"))
        self.redraw = redraw
        self.rows_: Scored | None = None

    def pick(self, rows: Scored, budget: int, pool: Pool) -> np.ndarray:
        """The best, or a draw among those that do no harm."""
        if self.take == "best":
            return super().pick(rows, budget, pool)
        classes = pool.task.classes
        # What the method does not select does no harm, yet teaches nothing: it must not take the places of what does.
        apart = classes * rows.selected if self.quota == "proportional" else 0
        everything = np.ones(len(rows.ids), dtype=bool)
        drawn = lots(rows, pool.rng(LOTTERY))._replace(selected=everything, labels=rows.labels + apart)
        return best(drawn, budget, self.quota, 2 * classes)

    @property
    def resamples(self) -> bool:
        """A draw can be repeated, a ranking cannot."""
        return self.redraw and self.take == "harmless"

    def choose(self, pool: Pool, budget: int) -> Selection:
        """By a new look at the pool, which `again` remembers."""
        selection = super().choose(pool, budget)
        self.rows_ = selection.rows if self.resamples else None
        return selection

    def resample(self, pool: Pool, budget: int) -> Coreset:
        """Another draw; at random before the first look."""
        if self.rows_ is None:
            return uniform(random_subset(pool.size, budget, pool.seed, pool.number))
        return self.coreset(self.rows_, budget, pool)

    def state_dict(self) -> dict[str, Tensor]:
        """The averaged scores, and the rows of the last look."""
        return super().state_dict() | (rows_state(self.rows_) if self.rows_ else {})

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue where `state_dict` was taken."""
        super().load_state_dict(state)
        self.rows_ = restored_rows(state)


def lots(rows: Scored, rng: np.random.Generator) -> Scored:
    """A random number in place of each score, but for what the method selects and would do harm: it comes last."""
    score = known(rows.scores)
    return rows._replace(scores=np.where(rows.selected & (score < 0), score, rng.random(len(score))))
