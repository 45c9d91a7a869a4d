"""HarmlessSampler: drops the examples with a negative score and draws the core set at random from the rest."""

from __future__ import annotations

from typing import Literal

import numpy as np
from torch import Tensor

from ...types import Coreset
from ...validation import check_choice
from ..base import FirstInterval, ScoreWith, random_subset, uniform
from ..pool import Pool
from ..ranking import Quota, Scored, best, nan_to_worst, rows_from_state, rows_to_state
from ..scoring import ScoredSelector
from ..selection import Selection

Strategy = Literal["top", "drop_harmful"]
HARMLESS_DRAW = 22  # key of a random stream


class HarmlessSampler(ScoredSelector):
    """A selector for scores whose sign has a meaning: a negative score is harmful. See INFUSE for the options."""

    def __init__(self, keep: float, every: int | None, first_interval: FirstInterval, score_with: ScoreWith,
                 quota: Quota, score_momentum: float, random_fraction: float, strategy: Strategy,
                 resample_each_pass: bool) -> None:  # fmt: skip
        super().__init__(keep, every, first_interval, score_with, quota, score_momentum, random_fraction)
        self.strategy = check_choice("strategy", strategy, ("top", "drop_harmful"))
        self.resample_each_pass = resample_each_pass
        self.rows_: Scored | None = None

    @property
    def resamples(self) -> bool:
        """Only a random draw can be repeated; the top scores stay the same."""
        return self.resample_each_pass and self.strategy == "drop_harmful"

    def choose(self, pool: Pool, budget: int) -> Selection:
        """Scan the pool; the scores are stored for `resample`."""
        selection = super().choose(pool, budget)
        self.rows_ = selection.rows if self.resamples else None
        return selection

    def pick(self, rows: Scored, budget: int, pool: Pool) -> np.ndarray:
        """The top scores, or a random draw from the harmless examples."""
        if self.strategy == "top":
            return super().pick(rows, budget, pool)
        classes = pool.task.classes
        # Unselected examples are harmless but teach nothing. Counted as classes of their own, they cannot take the
        # places of selected ones.
        offset = classes * rows.selected if self.quota == "proportional" else 0
        everything = np.ones(len(rows.ids), dtype=bool)
        drawn = random_scores(rows, pool.rng(HARMLESS_DRAW))._replace(selected=everything, labels=rows.labels + offset)
        return best(drawn, budget, self.quota, 2 * classes)

    def resample(self, pool: Pool, budget: int) -> Coreset:
        """Another draw with the same scores; a random subset before the first scan."""
        if self.rows_ is None:
            return uniform(random_subset(pool.size, budget, pool.seed, pool.number))
        return self.coreset(self.rows_, budget, pool)

    def state_dict(self) -> dict[str, Tensor]:
        """The averaged scores, and the rows of the last scan."""
        return super().state_dict() | (rows_to_state(self.rows_) if self.rows_ else {})

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore what `state_dict` returned."""
        super().load_state_dict(state)
        self.rows_ = rows_from_state(state)


def random_scores(rows: Scored, rng: np.random.Generator) -> Scored:
    """Replace every score by a random number in [0, 1), except those of selected harmful examples, which come last."""
    score = nan_to_worst(rows.scores)
    return rows._replace(scores=np.where(rows.selected & (score < 0), score, rng.random(len(score))))
