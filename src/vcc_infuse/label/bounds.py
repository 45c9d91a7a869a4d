"""What may be promised of labels that a person confirmed in bulk.

**What is exchangeable with what.** A *batch* is a set of images that the model puts in one class; it is fixed before
any of them is looked at. The tiles of a grid are drawn from it *at random, by us*: neither the model's confidence nor
the order on the screen decides who is looked at, so the tiles are a simple random sample of the batch, however sure
or wrong the model is. What the person finds on the tiles therefore bounds what is wrong among the rest, with no
assumption on model or images. Tiles shown because they are the most (or least) confident would bound nothing.

**People overlook things.** A wrong tile is clicked with probability 1 − `missed` at least, independently. Wrong tiles
that were looked at and missed stay labels, so the promise counts them.

**Looks.** Who goes on as long as he likes and stops when the figure pleases him needs bounds that hold after every
grid at once: look j of a batch spends 1/(j(j + 1)) of the 5 %, which adds up to no more than 5 % over all looks.

**Batches that are given up.** The promise on a batch breaks for at most 5 % of the batches *begun*. Who keeps only
batches that look good chooses by the outcome, so a promise on all labels kept must count the clicks in the batches that
were given up, too (`pooled_bound`). Whether a batch belongs to those counted must be known before it is looked at.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, NamedTuple, TypedDict

import numpy as np

from ..errors import UserError, check_choice, check_range

CONFIDENCE = 0.95
MISSED = 0.05  # share of wrong tiles that people overlook on a grid (assumed)


class Bound(TypedDict):
    """A promise: with 95 % confidence at most `at_most` of `labels` are wrong, since `wrong` of `looked_at` were."""

    labels: int
    looked_at: int
    wrong: int
    at_most: float


class Batch(NamedTuple):
    """Images that the model puts in one class, and what a person found on the random part that was looked at.

    Attributes:
        size: images in the batch, looked at or not, wrong ones included.
        looked_at: of these, drawn at random.
        wrong: of those looked at, clicked as wrong; they are no longer labels of this class.
        looks: grids that were confirmed, each of which showed a bound.
        kept: whether the rest became labels; False for a batch that was given up because its bound was bad.
    """

    size: int
    looked_at: int
    wrong: int
    looks: int = 1
    kept: bool = True


def clopper_pearson(
    wrong: int, n: int, *, confidence: float = CONFIDENCE, side: Literal["upper", "two"] = "upper"
) -> tuple[float, float]:
    """The exact interval of a share of which `wrong` in `n` random draws were seen.

    Args:
        wrong: draws that were wrong.
        n: draws; with none the interval is everything.
        confidence: of the interval.
        side: `upper` for "at most" (the lower end is 0), `two` for an interval.

    >>> round(clopper_pearson(0, 59)[1], 3)
    0.05
    """
    from scipy.stats import beta

    _check_counts(wrong, n)
    check_range("confidence", confidence, 0, 1)
    check_choice("side", side, ("upper", "two"))
    alpha = 1 - confidence
    tail = alpha / 2 if side == "two" else alpha
    low = 0.0 if side == "upper" or wrong == 0 else float(beta.ppf(tail, wrong, n - wrong + 1))
    high = 1.0 if wrong == n else float(beta.ppf(1 - tail, wrong + 1, n - wrong))
    return low, high


def bulk_bound(batch: Batch, *, missed: float = MISSED, confidence: float = CONFIDENCE) -> Bound:
    """The promise on one batch, if all of it but the tiles clicked as wrong are taken as labels.

    It is Clopper–Pearson's bound for a batch of finite size and a person who overlooks: the largest number of wrong
    images under which so few clicks are not yet a surprise. For a large batch and `missed` = 0 it is that of
    `clopper_pearson`; where everything was looked at only what was overlooked is left.

    >>> bulk_bound(Batch(size=5000, looked_at=150, wrong=1))["at_most"] < 0.05
    True
    """
    _check_batch(batch)
    check_range("missed", missed, 0, 1)
    left = _left_in(batch, missed, 1 - confidence)
    labels = batch.size - batch.wrong
    at_most = left / labels if labels else 0.0
    return {"labels": labels, "looked_at": batch.looked_at, "wrong": batch.wrong, "at_most": at_most}


def _left_in(batch: Batch, missed: float, alpha: float) -> int:
    """Wrong labels that a batch can still hold after any number of looks."""
    return _most_wrong(batch, missed, alpha * _part(max(batch.looks, 1))) - batch.wrong


def _part(number: int) -> float:
    """The part of the 5 % for look (or batch) 1, 2, …; all of them add up to 1."""
    return 1 / (number * (number + 1))


def _most_wrong(batch: Batch, missed: float, alpha: float) -> int:
    """The largest number of wrong images in the batch that is not refuted at level `alpha`, by bisection."""
    low = batch.wrong
    high = batch.size - (batch.looked_at - batch.wrong if missed == 0 else 0)
    while low < high:
        middle = (low + high + 1) // 2
        if _few_clicks(batch, middle, missed) > alpha:
            low = middle
        else:
            high = middle - 1
    return low


def _few_clicks(batch: Batch, wrong: int, missed: float) -> float:
    """The probability of as few clicks as were seen, or fewer, if `wrong` images of the batch are wrong."""
    from scipy.stats import binom, hypergeom

    shown = np.arange(min(wrong, batch.looked_at) + 1)
    chance = hypergeom.pmf(shown, batch.size, wrong, batch.looked_at)
    return float(chance @ binom.cdf(batch.wrong, shown, 1 - missed))


POINTS = (math.inf, 3.0, 1.5, 0.75, 0.375)  # where the exponential bound is taken; each has its part of the 5 %
PARTS = (0.4, 0.15, 0.15, 0.15, 0.15)


def pooled_bound(batches: Sequence[Batch], *, missed: float = MISSED, confidence: float = CONFIDENCE) -> Bound:
    """The promise on the labels of several batches together, after any number of looks at any of them.

    It is the better of two promises, each with half of the 5 %. One adds up what `bulk_bound` leaves in each batch that
    was kept, batch b with 1/(b(b + 1)) of the 5 %: all of these hold at once, whichever are kept. The other knows that
    bad luck does not add up, and is better where hardly a batch was given up:

    Batches follow one another, the person picks classes and stops as he likes, so neither the sizes of the samples
    nor their number is fixed. Let p be the share of wrong ones among the images of the batch not yet shown when a
    tile is drawn. The tile is clicked with probability p·d, d = 1 − missed, and overlooked with p·(1 − d), whatever
    came before. So exp(g·Σp + μ·overlooked − λ·clicks) is a supermartingale for g = d(1 − e^−λ) − (1 − d)(e^μ − 1),
    and by Ville's inequality g·Σp + μ·overlooked ≤ λ·clicks + log(1/α) at all times at once. The wrong images of a
    batch that nobody saw were waiting at each of its draws, so Σp over its draws is at least their number times
    1/size + … + 1/(size − looked_at + 1). Let r be the largest inverse of that sum over the batches: all wrong labels
    are at most r·Σp + overlooked, and μ = g/r bounds that.

    Args:
        batches: all that were begun, in this order, those given up with `kept=False`: their clicks count, their images
            do not.
        missed: the share of wrong tiles that people overlook, at most.
        confidence: of the promise.

    >>> round(pooled_bound([Batch(500, 100, 0), Batch(500, 100, 1)])["at_most"], 3)
    0.043
    """
    for batch in batches:
        _check_batch(batch)
    check_range("missed", missed, 0, 1)
    labels = sum(batch.size - batch.wrong for batch in batches if batch.kept)
    looked_at = sum(batch.looked_at for batch in batches)
    wrong = sum(batch.wrong for batch in batches)
    unseen = any(batch.looked_at == 0 < batch.size and batch.kept for batch in batches)
    half = (1 - confidence) / 2
    summed = sum(_left_in(batch, missed, half * _part(b)) for b, batch in enumerate(batches, 1) if batch.kept)
    left = summed if unseen else min(summed, _most_left(batches, missed, half))
    at_most = min(left / labels, 1.0) if labels else 0.0
    return {"labels": labels, "looked_at": looked_at, "wrong": wrong, "at_most": at_most}


def _most_left(batches: Sequence[Batch], missed: float, alpha: float) -> float:
    """The least of r·(λ·clicks + log(1/α)) / g over the points λ, each with its part of α."""
    wrong = sum(batch.wrong for batch in batches)
    ratio = max((1 / _draws(batch) for batch in batches if batch.size and batch.kept), default=1.0)
    bounds = []
    for point, part in zip(POINTS, PARTS, strict=True):
        if wrong == 0 or math.isfinite(point):
            clicks = point * wrong if wrong else 0.0
            bounds.append(ratio * (clicks - math.log(alpha * part)) / _gain(point, missed, ratio))
    return min(bounds)


def _draws(batch: Batch) -> float:
    """The sum of 1/size, 1/(size − 1), … over the draws from a batch."""
    return float((1 / np.arange(batch.size - batch.looked_at + 1, batch.size + 1)).sum())


def _gain(point: float, missed: float, ratio: float) -> float:
    """g, which is also in μ = g/r: the root of a function that grows with g."""
    from scipy.optimize import brentq

    caught = (1 - missed) * (1 - math.exp(-point))
    if missed == 0:
        return caught
    return float(brentq(lambda g: g + missed * math.expm1(min(g / ratio, 500.0)) - caught, 0.0, caught))


@lru_cache(256)
def promise(batches: tuple[Batch, ...]) -> Bound:
    """The promise on one batch or on several, kept: a page asks for it after every click, and few clicks change it."""
    return pooled_bound(batches) if len(batches) > 1 else bulk_bound(batches[0])


def _check_counts(wrong: int, n: int) -> None:
    if not 0 <= wrong <= n:
        raise UserError(f"wrong must be from 0 to the number looked at, {n}, got {wrong}")


def _check_batch(batch: Batch) -> None:
    _check_counts(batch.wrong, batch.looked_at)
    if batch.looked_at > batch.size:
        raise UserError(f"looked_at must be at most the size of the batch, {batch.size}, got {batch.looked_at}")
