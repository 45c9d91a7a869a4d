"""How many more labels? The error of a linear head on subsets of the labels, continued beyond them."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..errors import UserError, check_integer, check_range
from .arrays import check_classes, check_features, check_labels
from .ridge import leave_one_out, ridge_scores

EXPONENTS = np.linspace(0.1, 1.5, 29)
LEAST_SIZES = 3
MOST_LABELS = 2000  # of which subsets are drawn
MOST_IN_PASSING = 2000  # labels for which a run continues a curve: eight seconds (results/pools/curve_seconds.md)
REPEATS = (5, 20)  # fewest and most subsets of each size in a run
EASY = 400  # labels of which the most subsets take a second


@dataclass(frozen=True)
class Interval:
    """An estimate between two bounds."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class LearningCurve:
    """The error as a function of the number of labels.

    Attributes:
        sizes: numbers of labels that were tried, of shape (sizes,).
        errors: the mean error at each, of shape (sizes,).
        floor, factor, exponent: of the fitted error(n) = floor + factor · n^−exponent.
        now: the error with all labels.
        at_double: the error with twice the labels.
        more_for_half: how many more labels halve the part of the error that labels can remove.
        note: why the curve cannot be continued, or empty. The intervals then are NaN.
    """

    sizes: np.ndarray
    errors: np.ndarray
    floor: float
    factor: float
    exponent: float
    now: Interval
    at_double: Interval
    more_for_half: Interval
    note: str

    def error_at(self, labels: float) -> float:
        """The fitted error with this number of labels."""
        return float(self.floor + self.factor * labels**-self.exponent)

    def describe(self) -> str:
        """The error now and with twice the labels, or why nothing can be said."""
        now, double = (f"{at.value:.1%} ({at.low:.1%} to {at.high:.1%})" for at in (self.now, self.at_double))
        return self.note or f"error of a linear head now {now}, with twice the labels {double}"


def learning_curve(
    features: Any,
    labels: Any,
    *,
    classes: int | None = None,
    repeats: int = 20,
    level: float = 0.9,
    draws: int = 200,
    seed: int = 0,
) -> LearningCurve:
    """Fit a power law to the errors of ridge heads on subsets of the labels, each measured on the other labels.

    Args:
        features: of the labeled images, of shape (rows, width), as `unit_rows` makes them.
        labels: of shape (rows,), from 0.
        classes: by default one more than the largest label.
        repeats: subsets of each size; each class keeps its share, and at least one label.
        level: of the intervals, which are percentiles over draws of labels and subsets with replacement.
        draws: their number.
        seed: of the subsets and draws.
    """
    rows = check_features("features", features)
    given = check_labels("labels", labels, len(rows), classes=classes)
    number = check_classes(given, classes)
    check_integer("repeats", repeats, 2)
    check_range("level", level, 0, 1, open_low=True, open_high=True)
    if len(np.unique(given)) < 2:
        raise UserError("labels must hold at least two classes, got one; label a second class")
    rng = np.random.default_rng(seed)
    penalty = leave_one_out(rows, given, number).penalty
    plans = _subset_counts(np.bincount(given, minlength=number))
    wrong = [_wrong_on_subsets(rows, given, counts, penalty, repeats, rng) for counts in plans]
    sizes = np.array([int(counts.sum()) for counts in plans])
    return _summarize(sizes, wrong, len(given), level, check_integer("draws", draws), rng)


def curve_in_passing(features: Any, labels: np.ndarray, classes: int) -> dict[str, Any]:
    """What the summary of a run says of more labels, after eight seconds of one core at most.

    Args:
        features: of the labeled images, of shape (rows, width), as `unit_rows` makes them.
        labels: of shape (rows,).
        classes: their number.

    Returns:
        `text`, one sentence, `labels`, `seconds`, and the values of a `LearningCurve` if the curve can be continued.
    """
    count = len(labels)
    if count > MOST_IN_PASSING:
        text = f"{count:,} labels are too many to estimate in passing what more would bring; vcc-infuse audit does"
        return {"labels": count, "text": text}
    if len(np.unique(labels)) < 2:
        return {"labels": count, "text": "labels of one class say nothing about more labels; label a second class"}
    began = time.perf_counter()
    repeats = int(np.clip(REPEATS[1] * EASY // count, *REPEATS))
    curve = learning_curve(features, labels, classes=classes, repeats=repeats)
    figures = {} if curve.note else asdict(curve)
    figures |= {name: values.tolist() for name, values in figures.items() if isinstance(values, np.ndarray)}
    return {"labels": count, "text": curve.describe(), "seconds": time.perf_counter() - began, **figures}


def _subset_counts(counts: np.ndarray) -> list[np.ndarray]:
    """Labels of each class in subsets of growing size; every class keeps its share, and one label to measure on.

    Leaving single labels out, or drawing subsets regardless of class, would be too pessimistic: the class of what is
    measured would always have been shown a little too rarely.
    """
    typical = int(np.median(counts[counts > 0]))
    largest = min(max(0.8 * typical, typical - 1), MOST_LABELS / max((counts > 0).sum(), 1))
    plans: dict[int, np.ndarray] = {}
    for each in (round(2 ** (step / 2)) for step in range(30)):
        if each <= largest:
            inside = np.clip(np.round(counts * each / typical), 1, np.maximum(counts - 1, 1)).astype(int)
            plan = np.where(counts > 0, inside, 0)
            plans[int(plan.sum())] = plan
    return [plans[size] for size in sorted(plans)]


def _wrong_on_subsets(
    rows: np.ndarray, labels: np.ndarray, counts: np.ndarray, penalty: float, repeats: int, rng: np.random.Generator
) -> np.ndarray:
    """Whether each label outside of a subset is predicted wrongly, of shape (repeats, rows); NaN inside."""
    wrong = np.full((repeats, len(labels)), np.nan)
    for repeat in range(repeats):
        inside = _stratified(labels, counts, rng)
        outside = np.setdiff1d(np.arange(len(labels)), inside)
        scores = ridge_scores(rows[inside], labels[inside], rows[outside], len(counts), penalty)
        wrong[repeat, outside] = scores.argmax(1) != labels[outside]
    return wrong


def _stratified(labels: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Rows with so many labels of each class."""
    order = rng.permutation(len(labels))
    return np.concatenate([order[labels[order] == label][:count] for label, count in enumerate(counts)])


def _summarize(
    sizes: np.ndarray, wrong: list[np.ndarray], labels: int, level: float, draws: int, rng: np.random.Generator
) -> LearningCurve:
    errors = np.array([_mean(rows) for rows in wrong])
    nothing = Interval(np.nan, np.nan, np.nan)
    if len(sizes) < LEAST_SIZES or not np.isfinite(errors).all():
        note = f"{labels} labels are too few to continue a curve; it needs about four per class"
        return LearningCurve(sizes, errors, np.nan, np.nan, np.nan, nothing, nothing, nothing, note)
    weights = _weights(sizes)
    best = _fit(sizes, errors, weights)
    drawn = np.array([_fit(sizes, _redraw(wrong, rng), weights) for _ in range(draws)])
    tails = ((1 - level) / 2, (1 + level) / 2)
    now = _interval(_error_at(best, labels), _error_at(drawn.T, labels), tails)
    double = _interval(_error_at(best, 2 * labels), _error_at(drawn.T, 2 * labels), tails)
    more = _interval(_more_for_half(best[2], labels), _more_for_half(drawn[:, 2], labels), tails)
    floor, factor, exponent = best.tolist()
    return LearningCurve(sizes, errors, floor, factor, exponent, now, double, more, "")


def _mean(wrong: np.ndarray) -> float:
    known = ~np.isnan(wrong)
    return float(np.where(known, wrong, 0).sum() / known.sum()) if known.any() else np.nan


def _redraw(wrong: list[np.ndarray], rng: np.random.Generator) -> np.ndarray:
    """Errors on labels drawn with replacement, the same for all sizes, and on subsets drawn with replacement."""
    columns = rng.integers(wrong[0].shape[1], size=wrong[0].shape[1])
    return np.array([_mean(rows[rng.integers(len(rows), size=len(rows))][:, columns]) for rows in wrong])


def _weights(sizes: np.ndarray) -> np.ndarray:
    """Larger subsets count more: the power law need not hold down to one label per class."""
    weights: np.ndarray = sizes / sizes.sum()
    return weights


def _fit(sizes: np.ndarray, errors: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Floor, factor and exponent of least weighted squares, floor and factor not negative."""
    powers = sizes[None] ** -EXPONENTS[:, None]
    mean = powers @ weights
    centered = powers - mean[:, None]
    slope = (centered * weights) @ errors / ((centered**2) @ weights)
    floor = (errors @ weights) - slope * mean
    through_zero = (powers * weights) @ errors / ((powers**2) @ weights)
    slope = np.where(floor < 0, through_zero, slope)
    floor = np.maximum(floor, 0)
    flat = slope < 0
    slope = np.where(flat, 0, slope)
    floor = np.where(flat, errors @ weights, floor)
    loss = np.square(floor[:, None] + slope[:, None] * powers - errors) @ weights
    best = int(loss.argmin())
    return np.array([floor[best], slope[best], EXPONENTS[best]])


def _error_at(fitted: np.ndarray, labels: float) -> np.ndarray:
    floor, factor, exponent = fitted
    return np.asarray(floor + factor * labels**-exponent)


def _more_for_half(exponent: np.ndarray, labels: float) -> np.ndarray:
    return np.asarray(labels * (2 ** (1 / exponent) - 1))


def _interval(value: np.ndarray, drawn: np.ndarray, tails: tuple[float, float]) -> Interval:
    low, high = np.quantile(drawn, tails)
    return Interval(float(value), float(min(low, value)), float(max(high, value)))
