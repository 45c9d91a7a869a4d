"""The temperature that minimizes the negative log likelihood (Guo et al., ICML 2017), by safeguarded Newton steps.

The likelihood is convex in the inverse temperature, so the one minimum is found to machine precision in a few steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ..utils.numerics import to_float64

LOWEST, HIGHEST = 0.05, 20.0


TOLERANCE = 1e-9


class Fit(NamedTuple):
    """A temperature, and whether it is only as far as the search may go: the data themselves name no minimum."""

    temperature: float
    at_bound: bool


class Likelihood(NamedTuple):
    """Negative log likelihood with its first two derivatives by the inverse temperature."""

    value: float
    slope: float
    curvature: float


def derivatives(inverse: Tensor | float, logits: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Slope and curvature of the mean cross entropy by the inverse temperature.

    `wanted` is each example's logit averaged over its target: the true class's own, or a mean for soft labels.
    """
    probs = (inverse * logits).softmax(1)
    mean = (probs * logits).sum(1)
    return (mean - wanted).mean(), (probs * (logits - mean[:, None]).square()).sum(1).mean()


def likelihood(inverse: float, logits: Tensor, labels: Tensor) -> Likelihood:
    """Mean over examples; `logits` in double precision."""
    own = logits.gather(1, labels[:, None]).squeeze(1)
    value = ((inverse * logits).logsumexp(1) - inverse * own).mean()
    return Likelihood(*torch.stack([value, *derivatives(inverse, logits, own)]).tolist())


def descend(logits: Tensor, labels: Tensor, low: float, high: float, steps: int = 60) -> Iterator[tuple[float, float]]:
    """Inverse temperatures between `low` and `high` and their likelihoods, each no worse than the one before."""
    inverse = min(max(1.0, low), high)
    here = likelihood(inverse, logits, labels)
    yield inverse, here.value
    for _ in range(steps):
        low, high = (low, inverse) if here.slope > 0 else (inverse, high)
        target = inverse - here.slope / here.curvature if here.curvature > 0 else high
        if not low < target < high:
            target = (low * high) ** 0.5
        there = likelihood(target, logits, labels)
        while there.value > here.value and abs(target - inverse) > TOLERANCE * inverse:
            target = (target + inverse) / 2
            there = likelihood(target, logits, labels)
        if abs(target - inverse) <= TOLERANCE * inverse or not there.value <= here.value:
            return
        inverse, here = target, there
        yield inverse, here.value


@torch.no_grad()
def fit_temperature(logits: Tensor, labels: Tensor, lowest: float = LOWEST, highest: float = HIGHEST) -> Fit:
    """The best temperature from `lowest` to `highest` for logits (not probabilities) and their true classes."""
    logits = to_float64(logits - logits.amax(1, keepdim=True))
    low, high = 1 / highest, 1 / lowest
    if likelihood(high, logits, labels).slope <= 0:
        return Fit(lowest, True)
    if likelihood(low, logits, labels).slope >= 0:
        return Fit(highest, True)
    *_, (inverse, _) = descend(logits, labels, low, high)
    return Fit(1 / inverse, False)
