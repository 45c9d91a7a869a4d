"""TODO."""

from __future__ import annotations

from torch import Tensor

from .base import Warmup, Weights
from .pool import Pool
from .ranking import Quota
from .scoring import ScoredSelector, example_columns


class EL2N(ScoredSelector):
    """Keeps the largest distance between the learning view's probabilities and the pseudo label of the weak one.

    Measured on one view against its own label, the distance would only be low confidence by another name.

    Args:
        keep: share of the pool to keep, and of the optimizer steps to take.
        every: steps between refreshes; if not given, 40/1024 of the run, or what a short run can afford.
        weights: score with the "online" or the averaged ("ema") weights.
        quota: share the budget among pseudo classes: "none", "proportional" to their counts, or "equal".
        smooth: factor of past refreshes in a moving average of the scores (the original averages over networks).
        random_fraction: part of the budget that is drawn at random from what the ranking leaves.
        warmup: core set of the first interval: "random", the "full" pool, or "score" with the untrained model.
    """

    def __init__(
        self,
        keep: float = 0.4,
        every: int | None = None,
        weights: Weights = "online",
        quota: Quota = "none",
        smooth: float = 0.5,
        random_fraction: float = 0.0,
        warmup: Warmup = "random",
    ) -> None:
        super().__init__(keep, every, warmup, weights, quota, smooth, random_fraction)

    def score(self, pool: Pool) -> dict[str, Tensor]:
        """The length of the error vector, which already carries the pseudo label's weight."""
        return pool.scan(lambda chunk: {"score": chunk.errors.norm(dim=1), **example_columns(chunk)})
