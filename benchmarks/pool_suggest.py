"""What to label next: the error of a head whose labels were chosen in rounds, from none on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from vcc_infuse import SSLData, pool_audit

from .features import FeatureSet
from .page import Table
from .pool_features import Features, enough
from .pool_study import Case, Run, Study, grouped
from .pool_training import measure

PER_CLASS = (1, 2, 4, 7, 10, 15, 25)
FEWER = (1, 4, 10, 25)  # rounds with an SSL head, which takes seconds to train
ErrorOf = Callable[[Features, np.ndarray, np.ndarray], float]  # of rows of the pool and their labels, −1 if none


Chooser = Callable[[np.ndarray, np.ndarray, int, int, np.random.Generator], np.ndarray]


def choose_random(x: np.ndarray, labels: np.ndarray, count: int, classes: int, rng: np.random.Generator) -> np.ndarray:
    """Any rows."""
    return rng.choice(np.flatnonzero(labels < 0), count, replace=False)


def choose_margin(x: np.ndarray, labels: np.ndarray, count: int, classes: int, rng: np.random.Generator) -> np.ndarray:
    """The least certain rows, one by one as they come; at random without labels."""
    labeled = labels >= 0
    if len(np.unique(labels[labeled])) < 2:
        return choose_random(x, labels, count, classes, rng)
    top = np.sort(pool_audit.fit_ridge(x[labeled], labels[labeled], classes).probs(x), axis=1)
    margin = np.where(labeled, np.inf, top[:, -1] - top[:, -2])
    return np.argsort(margin, kind="stable")[:count]


def choose_far(x: np.ndarray, labels: np.ndarray, count: int, classes: int, rng: np.random.Generator) -> np.ndarray:
    """K-center: again and again the row farthest from all that are labeled or chosen."""
    chosen = [] if (labels >= 0).any() else [int(rng.integers(len(x)))]
    start = np.concatenate([np.flatnonzero(labels >= 0), chosen]).astype(int)
    nearest = (x @ x[start].T).max(1)
    while len(chosen) < count:
        chosen.append(int(nearest.argmin()))
        nearest = np.maximum(nearest, x @ x[chosen[-1]])
    return np.array(chosen)


def choose_suggested(strategy: str) -> Chooser:
    """What the library suggests."""

    def choose(x: np.ndarray, labels: np.ndarray, count: int, classes: int, rng: np.random.Generator) -> np.ndarray:
        seed = int(rng.integers(2**31))
        options = dict(count=count, classes=classes, strategy=strategy, seed=seed)
        return pool_audit.suggest_labels(x, labels, **options).rows  # type: ignore[arg-type]

    return choose


CHOOSERS: dict[str, Chooser] = {
    "random": choose_random,
    "k-center": choose_far,
    "margin alone": choose_margin,
    "coverage alone": choose_suggested("coverage"),
    "suggest_labels": choose_suggested("auto"),
}


WITH_DEFAULT = ("random", "margin alone", "suggest_labels")  # each takes the time of a fit per round


def ridge_error(data: Features, pool: np.ndarray, labels: np.ndarray) -> float:
    """The test error of a ridge head."""
    chosen = labels >= 0
    head = pool_audit.fit_ridge(data.x[pool[chosen]], labels[chosen], data.classes)
    return float((head.scores(data.test).argmax(1) != data.test_y).mean())


def suggest(head: str, names: Sequence[str], error_of: ErrorOf, rounds: Sequence[int] = PER_CLASS) -> Study:
    """Errors of a head after each round, in per cent, by the ways to choose of these names.

    The head is part of each case, so that runs with an earlier one are never shown as runs with this.
    """

    def values(data: Features, case: Case, seed: int) -> list[float]:
        return [100 * error for error in label_in_rounds(data, CHOOSERS[str(case[0])], error_of, rounds, seed)]

    def shown(runs: Sequence[Run]) -> list[Table]:
        return tables(head, rounds, [run for run in runs if run["case"][1:] == [head]])

    return Study(lambda data: [(name, head) for name in names], values, shown)


SUGGEST = suggest("ridge head", list(CHOOSERS), ridge_error)


def suggest_ssl(folder: Path) -> Study:
    """The same with the method that `train` uses on features."""
    load = cache(FeatureSet.load)

    def error_of(data: Features, pool: np.ndarray, labels: np.ndarray) -> float:
        return default_error(load(folder, data.name), pool, labels)

    return suggest("SelfTraining", WITH_DEFAULT, error_of, FEWER)


def default_error(views: FeatureSet, pool: np.ndarray, labels: np.ndarray) -> float:
    """Test images of classes that nobody labeled yet count as mistakes."""
    present = np.unique(labels[labels >= 0])
    shown = np.where(labels >= 0, np.searchsorted(present, labels), -1)
    tested = np.isin(views.test_y, present)
    truth = np.searchsorted(present, views.test_y[tested])
    names = [str(label) for label in present]
    data = SSLData.from_arrays(views.train[pool], shown, views.test[tested], truth, slots=views.slots, classes=names)
    error = measure(data, {"algorithm": "SelfTraining"}, 0)
    return 1 - (1 - error) * float(tested.mean())


def tables(head: str, rounds: Sequence[int], runs: Sequence[Run]) -> list[Table]:
    """A table per set, a row per way to choose: mean, its standard error, then the difference from random, paired."""
    words = "error, % ± standard error, and difference from random ± standard error, at n labels per class on average"
    found = grouped(runs)
    shown = []
    for name in dict.fromkeys(run["set"] for run in runs):
        errors = {case[0]: values for (other, case), values in found.items() if other == name}
        random = errors["random"]
        rows = [[str(way), *cells(values, values - random[: len(values)])] for way, values in errors.items()]
        columns = ("chosen by", *map(str, rounds[: random.shape[1]]))
        shown.append(Table(f"{name}, {head}: {words}, {len(random)} seeds", columns, rows))
    return shown


def cells(errors: np.ndarray, gaps: np.ndarray) -> list[str]:
    """One text per column of errors, of shape (seeds, counts)."""
    texts = [f"{mean:.1f} ± {noise:.1f}" for mean, noise in zip(errors.mean(0), spread(errors), strict=True)]
    if not gaps.any():
        return [text.replace(" ± nan", "") for text in texts]
    pairs = zip(texts, gaps.mean(0), spread(gaps), strict=True)
    return [f"{text}, {gap:+.1f} ± {noise:.1f}".replace(" ± nan", "") for text, gap, noise in pairs]


def spread(values: np.ndarray) -> np.ndarray:
    """Standard errors of the means over the first axis."""
    return values.std(0, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.full(values.shape[1], np.nan)


def label_in_rounds(
    data: Features, choose: Chooser, error_of: ErrorOf, rounds: Sequence[int], seed: int
) -> list[float]:
    """Errors after each round. Half of the pool is drawn anew for each seed."""
    counts = [count for count in rounds if enough(data, 2 * count)]
    rng = np.random.default_rng(seed)
    pool = np.sort(rng.permutation(len(data.y))[: max(len(data.y) // 2, 2 * counts[-1] * data.classes)])
    labels = np.full(len(pool), -1)
    errors = []
    for count in counts:
        rows = choose(data.x[pool], labels, count * data.classes - int((labels >= 0).sum()), data.classes, rng)
        labels[rows] = data.y[pool[rows]]
        errors.append(error_of(data, pool, labels))
    return errors
