"""EL2N (Paul et al., NeurIPS 2021): keep the examples with the largest prediction error."""

from __future__ import annotations

from torch import Tensor

from .base import FirstInterval, ScoreWith
from .pool import Pool
from .scoring import ScoredSelector, example_columns


class EL2N(ScoredSelector):
    """Keeps the largest distances between the strong view's probabilities and the weak view's pseudo label.

    Measured on one view against its own label, the distance would only be low confidence by another name.

    Args:
        keep: fraction of the pool to keep, and of the optimizer steps to take.
        every: optimizer steps between refreshes; if None, 40/1024 of the run, or what a short run can afford.
        score_with: score with the "online" or the averaged ("ema") weights.
        score_momentum: factor of past refreshes in a moving average of the scores (the paper averages over networks).
        first_interval: core set of the first interval: "random", the "full" pool, or "score" with the untrained model.
    """

    def __init__(
        self,
        keep: float = 0.4,
        every: int | None = None,
        score_with: ScoreWith = "online",
        score_momentum: float = 0.5,
        first_interval: FirstInterval = "random",
    ) -> None:
        super().__init__(keep, every, first_interval, score_with, score_momentum)

    def score(self, pool: Pool) -> dict[str, Tensor]:
        """The length of the error vector, which already contains the pseudo label's weight."""
        return pool.scan(lambda chunk: {"score": chunk.errors.norm(dim=1), **example_columns(chunk)})
