"""RobustINFUSE: INFUSE's scores with a selection rule of our own, which keeps the core set diverse.

The paper keeps the top scores. They do not say how examples work together: the best are similar to each other and come
from few classes. Here only the sign of a score counts. What would raise the support loss is dropped, and the budget is
drawn at random from all other examples, in proportion to the pseudo classes. The table `coreset` compares the two.
"""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from torch import Tensor

from ...types import Coreset
from ...utils.params import number
from ..base import Generators, Granularity, random_subset, uniform
from ..pool import Pool
from ..ranking import Quota, Scored, Selection, best, nan_to_worst, rows_from_state, rows_to_state
from .infuse import INFUSE

RANDOM_FRACTION, HARMLESS_DRAW = 11, 22  # keys of random streams


@dataclass(kw_only=True, eq=False, repr=False)
class RobustINFUSE(INFUSE):
    """A stratified random draw from the examples that do not raise the support loss.

    Args:
        strategy: "drop_harmful" drops what would raise the support loss and draws the budget at random from all other
            examples; "top" keeps the best scores, which differs from INFUSE by the quota.
        quota: how the budget is divided among pseudo classes: "proportional" to their counts, "equal", or "none".
            With strategy="drop_harmful", "proportional" counts the selected and the unselected examples of a class
            separately.
        score_momentum: factor of past refreshes in a moving average of the scores; 0 uses only the current scores.
        random_fraction: part of the budget that is drawn at random from the examples the ranking leaves out.
        resample_each_pass: with strategy="drop_harmful", draw another core set with the same scores after each pass
            through the current one: a set that is repeated many times teaches its own mistakes.
    """

    granularity: Granularity = field(default="example", init=False)
    rank: Literal["corrected", "printed"] = field(default="corrected", init=False)
    strategy: Literal["drop_harmful", "top"] = "drop_harmful"
    quota: Quota = "proportional"
    score_momentum: float = number(0.0, 0, 1, open_high=True)
    random_fraction: float = number(0.0, 0, 1)
    resample_each_pass: bool = False
    rows_: Scored | None = field(default=None, init=False)

    @property
    def resamples(self) -> bool:
        """Only a random draw can be repeated; the top scores stay the same."""
        return self.resample_each_pass and self.strategy == "drop_harmful"

    def score_pool(self, pool: Pool) -> dict[str, Tensor]:
        """Scores to average have unit mean size, or the refresh with the largest gradient would dominate."""
        columns = super().score_pool(pool)
        if self.score_momentum:
            size = columns["score"].abs().sum() / (columns["weight"] > 0).sum().clamp(min=1)
            columns["score"] = columns["score"] / size.clamp(min=1e-30)
        return columns

    def choose(self, pool: Pool, budget: int) -> Selection:
        """Scan the pool; the scores are stored for `resample`."""
        selection = super().choose(pool, budget)
        self.rows_ = selection.rows if self.resamples else None
        return selection

    def coreset(self, rows: Scored, budget: int, *, classes: int, rng: Generators) -> Coreset:
        """What the strategy picks, and a random fraction of the others."""
        drawn = round(self.random_fraction * budget)
        ids = self._pick(rows, budget - drawn, classes, rng)
        others = np.setdiff1d(rows.ids, ids)
        return uniform(np.concatenate([ids, rng(RANDOM_FRACTION).choice(others, drawn, replace=False)]))

    def _pick(self, rows: Scored, budget: int, classes: int, rng: Generators) -> np.ndarray:
        """The top scores, or a random draw from the harmless examples; either within the class quota."""
        if self.strategy == "top":
            return best(rows, budget, self.quota, classes)
        # Unselected examples are harmless but teach nothing. Counted as classes of their own, they cannot take the
        # places of selected ones.
        offset = classes * rows.selected if self.quota == "proportional" else 0
        everything = np.ones(len(rows.ids), dtype=bool)
        drawn = random_scores(rows, rng(HARMLESS_DRAW))._replace(selected=everything, labels=rows.labels + offset)
        return best(drawn, budget, self.quota, 2 * classes)

    def resample(self, pool: Pool, budget: int) -> Coreset:
        """Another draw with the same scores; a random subset before the first scan."""
        if self.rows_ is None:
            return uniform(random_subset(pool.size, budget, pool.seed, pool.number))
        return self.coreset(self.rows_, budget, classes=pool.task.classes, rng=pool.rng)

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
