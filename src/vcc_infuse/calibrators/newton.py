"""The temperature that minimizes the negative log-likelihood (Guo et al., ICML 2017), by safeguarded Newton steps.

The likelihood is convex in the inverse temperature, so a few steps find its only minimum.
"""

# Our own solver: brentq from scipy.optimize differs by one float32 ulp in 2 of 1000 fits, which would change trainings.

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ..utils.numerics import to_float64

MIN_TEMPERATURE, MAX_TEMPERATURE = 0.05, 20.0
TOLERANCE = 1e-9


class TemperatureFit(NamedTuple):
    """A temperature; `at_bound` if the likelihood has no minimum within the search range."""

    temperature: float
    at_bound: bool


class Likelihood(NamedTuple):
    """Negative log-likelihood and its first two derivatives with respect to the inverse temperature."""

    value: float
    slope: float
    curvature: float


@torch.no_grad()
def fit_temperature(
    logits: Tensor, labels: Tensor, low: float = MIN_TEMPERATURE, high: float = MAX_TEMPERATURE
) -> TemperatureFit:
    """The best temperature in [low, high] for logits (not probabilities) and their true classes."""
    logits = to_float64(logits - logits.amax(1, keepdim=True))
    if likelihood(1 / low, logits, labels).slope <= 0:
        return TemperatureFit(low, True)
    if likelihood(1 / high, logits, labels).slope >= 0:
        return TemperatureFit(high, True)
    *_, (inverse, _) = newton_iterates(logits, labels, 1 / high, 1 / low)
    return TemperatureFit(1 / inverse, False)


def newton_iterates(
    logits: Tensor, labels: Tensor, low: float, high: float, steps: int = 60
) -> Iterator[tuple[float, float]]:
    """Inverse temperatures in [low, high] and their likelihoods, each no worse than the one before."""
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


def likelihood(inverse: float, logits: Tensor, labels: Tensor) -> Likelihood:
    """Mean over examples; `logits` in double precision."""
    own = logits.gather(1, labels[:, None]).squeeze(1)
    value = ((inverse * logits).logsumexp(1) - inverse * own).mean()
    return Likelihood(*torch.stack([value, *derivatives(inverse, logits, own)]).tolist())


def derivatives(inverse: Tensor | float, logits: Tensor, target_logits: Tensor) -> tuple[Tensor, Tensor]:
    """Slope and curvature of the mean cross entropy with respect to the inverse temperature.

    `target_logits` is each example's logit averaged over its target: that of the true class, or a mean for soft labels.
    """
    probs = (inverse * logits).softmax(1)
    mean = (probs * logits).sum(1)
    return (mean - target_logits).mean(), (probs * (logits - mean[:, None]).square()).sum(1).mean()
