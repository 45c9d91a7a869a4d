"""EL2N (Paul et al., NeurIPS 2021): keep the examples with the largest prediction error."""

from dataclasses import dataclass

from torch import Tensor

from ..utils.params import number
from .base import ScoredSelector, example_columns
from .pool import Pool


@dataclass(kw_only=True, eq=False, repr=False)
class EL2N(ScoredSelector):
    """Keeps the largest distances between the strong view's probabilities and the weak view's pseudo label.

    Measured on one view against its own label, the distance would only be low confidence by another name.

    Args:
        score_momentum: factor of past refreshes in a moving average of the scores (the paper averages over networks).

    References:
        Paul, Ganguli, Dziugaite: Deep Learning on a Data Diet. NeurIPS 2021.
    """

    score_momentum: float = number(0.5, 0, 1, open_high=True)

    def score_pool(self, pool: Pool) -> dict[str, Tensor]:
        """The length of the error vector, which already contains the pseudo label's weight."""
        return pool.scan(lambda chunk: {"score": chunk.errors.norm(dim=1), **example_columns(chunk)})
