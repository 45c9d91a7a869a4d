"""Scores that might tell images of no class better than `find_unknown` does, all from frozen features.

`python -m benchmarks pools unknown_scores` compares them where foreign images are a large part of the pool, a small
part, and few images of another dataset: what helps against large foreign classes may hide the few.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp

from vcc_infuse import pool_audit
from vcc_infuse.metrics import auroc
from vcc_infuse.pool_audit.arrays import distances, unit

from .pool_features import Features
from .pool_study import Case, Study, table_of

PER_CLASS = 10
SMOOTHED_OVER = 10
ELSEWHERE = {"stl10": "cifar100", "cifar10": "cifar100", "fashion_mnist": "mnist", "mnist": "fashion_mnist",
             "cifar100": "stl10", "svhn": "mnist"}  # fmt: skip
KINDS = ("all of the left-out classes", "10 % of the pool", "2 % of the pool", "2 %, of another set")
COLUMNS = ("find_unknown", "k = 1", "k = 5", "means as they are", "distances ÷ √ class spread",
           "the larger of it and its 10 neighbors' mean", "10 neighbors' mean", "+ ¼ energy", "means of 3 views",
           "directions × pool variance^¼", "whitened by the pool", "relative Mahalanobis")  # fmt: skip


class Mixture(NamedTuple):
    """A pool of known and foreign rows of unit length, and the labels among them."""

    x: np.ndarray
    foreign: np.ndarray
    labeled: np.ndarray
    y: np.ndarray
    views: np.ndarray
    """Three views of the labeled images, of shape (labels, 3, width)."""


def scores_study(folder: Path) -> Study:
    """AUROC of every score, `PER_CLASS` labels per class, each seed with other classes left out."""

    def values(data: Features, case: Case, seed: int) -> list[float]:
        mixed = mixture(folder, data, str(case[0]), seed)
        rest = np.setdiff1d(np.arange(len(mixed.x)), mixed.labeled)
        return [auroc(score[rest], mixed.foreign[rest]) for score in all_scores(mixed)]

    title = f"AUROC of images of no class, {PER_CLASS} labels per class, by what is foreign"
    return Study(lambda data: [(kind,) for kind in KINDS], values, table_of(title, ("foreign", *COLUMNS)))


def mixture(folder: Path, data: Features, kind: str, seed: int) -> Mixture:
    """Draw known classes and labels, then the foreign rows."""
    rng = np.random.default_rng(seed)
    known = np.sort(rng.permutation(data.classes)[: round(data.classes * (0.8 if data.classes >= 100 else 0.6))])
    labeled = data.draw(rng, PER_CLASS, known)
    views = _raw(folder, data.name)
    inside = np.flatnonzero(np.isin(data.y, known))
    outside = views[np.flatnonzero(~np.isin(data.y, known)), 0]
    if kind == KINDS[3]:
        name, _, size = data.name.rpartition("-")
        outside = _raw(folder, f"{ELSEWHERE[name]}-{size}")[:, 0]
    share = {KINDS[0]: 1.0, KINDS[1]: 0.1}.get(kind, 0.02)
    count = len(outside) if share == 1 else min(len(outside), round(len(inside) * share / (1 - share)))
    rows = np.concatenate([views[inside, 0], outside[rng.permutation(len(outside))[:count]]])
    shown = views[labeled, :3]
    several = pool_audit.unit_rows(shown.reshape(-1, shown.shape[2]), reference=rows).reshape(shown.shape)
    foreign = np.arange(len(rows)) >= len(inside)
    at = np.searchsorted(inside, labeled)
    return Mixture(pool_audit.unit_rows(rows), foreign, at, np.searchsorted(known, data.y[labeled]), several)


def _raw(folder: Path, name: str) -> np.ndarray:
    with np.load(folder / f"{name}.npz") as arrays:
        return np.asarray(arrays["train"][:, :3], np.float32)


def all_scores(mixed: Mixture) -> list[np.ndarray]:
    """One score per row and column of the table."""
    x = mixed.x
    known = x[mixed.labeled]
    y = mixed.y
    plain = pool_audit.find_unknown(x, known, y).score
    one, five = (pool_audit.find_unknown(x, known, y, neighbors=count).score for count in (1, 5))
    near = pool_audit.find_unknown(x, known).score
    means = np.stack([known[y == label].mean(0) for label in np.unique(y)])
    free = (near + np.sqrt(squared(x, means)).min(1)) / 2
    local = plain[neighbors(x)].mean(1)
    head = pool_audit.fit_ridge(known, y, len(means))
    energy = -logsumexp(head.scores(x) / head.temperature, axis=1)
    several = unit(np.stack([mixed.views[y == label].mean((0, 1)) for label in np.unique(y)]))
    of_views = (near + distances(x, several).min(1)) / 2
    pool = Directions.of(x)
    weighed = to_labels(pool.coordinates(x, 0.25), mixed)
    white = to_labels(unit(pool.coordinates(x, -0.5)), mixed)
    with_energy = plain / plain.std() + energy / energy.std() / 4
    spread = by_class_spread(mixed, means)
    from_pool = (np.maximum(plain, local), local)
    return [
        plain,
        one,
        five,
        free,
        spread,
        *from_pool,
        with_energy,
        of_views,
        weighed,
        white,
        relative(mixed, means, pool),
    ]


def squared(rows: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Squared distances of any rows."""
    lengths = np.square(rows).sum(1)[:, None] + np.square(others).sum(1)
    return np.asarray(np.maximum(lengths - 2 * rows @ others.T, 0))


def neighbors(x: np.ndarray) -> np.ndarray:
    """The nearest other rows of each row, of shape (rows, SMOOTHED_OVER)."""
    far = distances(x, x)
    np.fill_diagonal(far, np.inf)
    return np.asarray(np.argpartition(far, SMOOTHED_OVER, axis=1)[:, :SMOOTHED_OVER])


def by_class_spread(mixed: Mixture, means: np.ndarray) -> np.ndarray:
    """Distances relative to the root of how far the labels of a class are from its other labels, drawn to the mean."""
    known = mixed.x[mixed.labeled]
    counts = np.bincount(mixed.y)
    others = unit(means[mixed.y] * counts[mixed.y, None] - known)
    own = np.sqrt(np.maximum(2 - 2 * (others * known).sum(1), 0))
    spread = (np.bincount(mixed.y, own) + PER_CLASS * own.mean()) / (counts + PER_CLASS) / own.mean()
    to_rows = distances(mixed.x, known) / np.sqrt(spread)[mixed.y]
    to_means = distances(mixed.x, unit(means)) / np.sqrt(spread)
    return np.asarray((np.partition(to_rows, 2, axis=1)[:, :3].mean(1) + to_means.min(1)) / 2)


class Directions(NamedTuple):
    """The principal directions of a pool, of shape (width, width), and its variances along them, of shape (width,)."""

    variances: np.ndarray
    basis: np.ndarray

    @classmethod
    def of(cls, x: np.ndarray) -> Directions:
        """Those of rows `x`."""
        around = x - x.mean(0)
        return cls(*np.linalg.eigh(around.T @ around / len(x)))

    def coordinates(self, x: np.ndarray, power: float) -> np.ndarray:
        """Centered rows along the directions, each times this power of its variance."""
        weights = np.maximum(self.variances, 0.1 * self.variances.mean()) ** power
        return np.asarray((x - x.mean(0)) @ (self.basis * weights), np.float32)

    def root(self) -> np.ndarray:
        """The root of the inverse of the covariance after shrinking it to its mean variance by nine tenths."""
        return np.asarray(self.basis / np.sqrt(0.1 * self.variances + 0.9 * self.variances.mean()))


def to_labels(rows: np.ndarray, mixed: Mixture) -> np.ndarray:
    """Half the mean distance to the three nearest labels, half that to the nearest mean of a class."""
    known = rows[mixed.labeled]
    means = np.stack([known[mixed.y == label].mean(0) for label in np.unique(mixed.y)])
    near = np.partition(np.sqrt(squared(rows, known)), 2, axis=1)[:, :3].mean(1)
    return np.asarray((near + np.sqrt(squared(rows, means)).min(1)) / 2)


def relative(mixed: Mixture, means: np.ndarray, pool: Directions) -> np.ndarray:
    """Squared Mahalanobis distance to the nearest class minus that to the pool, both with shrunk covariances."""
    known = mixed.x[mixed.labeled] - means[mixed.y]
    within = Directions(*np.linalg.eigh(known.T @ known / (len(known) - len(means)))).root()
    to_class = squared(mixed.x @ within, means @ within).min(1)
    to_pool = np.square((mixed.x - mixed.x.mean(0)) @ pool.root()).sum(1)
    return np.asarray(to_class - to_pool)
