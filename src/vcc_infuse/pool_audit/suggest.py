"""What to label next: images that stand for many others at first, images between classes later."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ..errors import OptionError, UserError, check_choice, check_integer, check_range
from .arrays import blocks, check_features, check_labels, check_probs, distances, main_directions, unit
from .duplicates import COSINE
from .ridge import fit_ridge
from .unknown import block_for

Strategy = Literal["auto", "coverage", "margin"]
ENOUGH = 4  # labels per class from which on a classifier knows better than coverage what it lacks
NEIGHBORS = 20
MOST_CLUSTERS = 500
MOST_MEMBERS = 2000  # of a cluster, to judge how typical a row is
FIT_ROWS = 20_000  # rows that clusters are fitted on
DIRECTIONS = 128  # in which clusters are fitted: ten times faster than in all
SHORTLIST = 10  # least certain rows per suggestion that a batch is spread over
CLOSE = 4  # times as likely as the next class: from there on it is no close race


@dataclass(frozen=True)
class Suggestions:
    """Images to label next, the most useful first.

    Attributes:
        rows: their row numbers.
        reasons: one sentence for each.
        scores: with `coverage` the share of all images that it stands for, with `margin` how close to even the two
            likeliest classes are (1 is a tie).
        strategy: `coverage` or `margin`.
    """

    rows: np.ndarray
    reasons: tuple[str, ...]
    scores: np.ndarray
    strategy: str


def suggest_labels(
    features: Any,
    labels: Any = None,
    *,
    count: int = 10,
    probs: Any = None,
    classes: int | None = None,
    names: Sequence[str] | None = None,
    candidates: Any = None,
    strategy: Strategy = "auto",
    copy_threshold: float = COSINE,
    seed: int = 0,
) -> Suggestions:
    """Suggest what to label next, from no label on.

    Args:
        features: of the whole pool, labeled or not, of shape (rows, width), as `unit_rows` makes them.
        labels: of shape (rows,), −1 where unlabeled; by default nothing is labeled.
        count: of suggestions; fewer are returned where only copies are left.
        probs: predictions for the pool, of shape (rows, classes); by default those of a ridge head on the labels.
        classes: how many classes there are, by default those among the labels.
        names: of the classes, for the reasons.
        candidates: row numbers to choose among, by default all that are unlabeled. Leave out what is foreign here.
        strategy: `coverage` takes the most typical row of the largest groups without a label, `margin` rows between
            two classes, spread out; `auto` is coverage up to four labels per class.
        copy_threshold: no two suggestions, and no suggestion and a label, have a cosine above it.
        seed: of k-means.

    >>> features = [[1.0, 0.0], [1.0, 0.1], [1.0, 0.2], [0.0, 1.0], [0.2, 1.0]]
    >>> suggest_labels(features, count=1).reasons
    ('most typical of 5 similar images, none of them labeled',)
    """
    rows = check_features("features", features)
    given = np.full(len(rows), -1) if labels is None else check_labels("labels", labels, len(rows), low=-1)
    open_rows = _candidates(given, candidates)
    wanted = min(check_integer("count", count), len(open_rows))
    check_range("copy_threshold", copy_threshold, -1, 1)
    if _strategy(given, strategy, classes, probs) == "coverage":
        chosen, reasons, sizes = _by_coverage(rows, given, open_rows, wanted, copy_threshold, seed)
        return Suggestions(chosen, reasons, sizes / len(rows), "coverage")
    predicted = _predict(rows, given) if probs is None else check_probs("probs", probs)
    if len(predicted) != len(rows):
        raise UserError(f"probs must have one row per row of features, {len(rows)}, got {len(predicted)}")
    chosen, similar = _by_margin(rows, given, predicted, open_rows, wanted, copy_threshold, seed)
    reasons = tuple(_reason(predicted[row], names, similar.get(int(row))) for row in chosen)
    return Suggestions(chosen, reasons, 1 - _margin(predicted[chosen]), "margin")


def _candidates(labels: np.ndarray, candidates: Any) -> np.ndarray:
    open_rows = np.flatnonzero(labels < 0)
    if candidates is not None:
        open_rows = np.intersect1d(open_rows, np.asarray(candidates, np.int64))
    if len(open_rows) == 0:
        raise UserError("every candidate is labeled already; add images to the pool")
    return open_rows


def _strategy(labels: np.ndarray, strategy: Strategy, classes: int | None, probs: Any) -> str:
    labeled = labels[labels >= 0]
    known = len(np.unique(labeled))
    check_choice("strategy", strategy, ("auto", "coverage", "margin"))
    if strategy == "margin" and known < 2 and probs is None:
        raise OptionError("strategy", strategy, "needs labels of two classes", "use coverage")
    if strategy != "auto":
        return strategy
    return "margin" if known > 1 and len(labeled) >= ENOUGH * max(classes or 0, known) else "coverage"


def _predict(rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Probabilities by a ridge head on the labels."""
    labeled = np.flatnonzero(labels >= 0)
    return fit_ridge(rows[labeled], labels[labeled], int(labels.max()) + 1).probs(rows)


def _by_coverage(
    rows: np.ndarray, labels: np.ndarray, open_rows: np.ndarray, count: int, copy_threshold: float, seed: int
) -> tuple[np.ndarray, tuple[str, ...], np.ndarray]:
    """Rows of the largest groups with the fewest labels, as TypiClust does (Hacohen et al., 2022), with their sizes."""
    labeled = np.flatnonzero(labels >= 0)
    clusters = min(len(labeled) + count, MOST_CLUSTERS, len(rows))
    assigned = _assign(rows, clusters, seed)
    sizes = np.bincount(assigned, minlength=clusters)
    covered = np.bincount(assigned[labeled], minlength=clusters)
    waiting = {number: _typical_first(rows, open_rows[assigned[open_rows] == number]) for number in range(clusters)}
    taken = unit(rows[labeled])
    chosen: list[int] = []
    reasons: list[str] = []
    stood_for: list[int] = []
    while len(chosen) < count and waiting:
        number = min(waiting, key=lambda key: (covered[key], -sizes[key]))
        row = _next_new(rows, waiting[number], taken, copy_threshold)
        if row is None:
            del waiting[number]
            continue
        labels_there = "none of them labeled" if not covered[number] else f"{covered[number]} of them labeled or chosen"
        chosen.append(row)
        reasons.append(f"most typical of {sizes[number]} similar images, {labels_there}")
        stood_for.append(int(sizes[number]))
        taken = np.vstack([taken, unit(rows[row : row + 1])])
        covered[number] += 1
    return np.array(chosen, np.int64), tuple(reasons), np.array(stood_for, float)


def _assign(rows: np.ndarray, clusters: int, seed: int) -> np.ndarray:
    """The cluster of each row, by k-means on at most `FIT_ROWS` of them."""
    from sklearn.cluster import KMeans  # here, because it takes a second to import
    from sklearn.exceptions import ConvergenceWarning

    basis = main_directions(rows, DIRECTIONS) if rows.shape[1] > DIRECTIONS else np.eye(rows.shape[1], dtype=np.float32)
    sample = unit(rows[:: -(-len(rows) // FIT_ROWS)]) @ basis
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct rows than clusters: some stay empty
        fitted = KMeans(clusters, random_state=seed).fit(sample)
    if len(sample) == len(rows):
        return np.asarray(fitted.labels_)
    return np.concatenate([fitted.predict(unit(rows[part]) @ basis) for part in blocks(len(rows))])


def _typical_first(rows: np.ndarray, members: np.ndarray) -> list[int]:
    """Members of a cluster by how near their nearest neighbors in it are; of many, an even sample."""
    members = members[:: max(1, -(-len(members) // MOST_MEMBERS))]
    if len(members) < 2:
        return [int(row) for row in members]
    vectors = unit(rows[members])
    count = min(NEIGHBORS, len(members) - 1)
    spread = np.concatenate(
        [
            np.partition(distances(vectors[part], vectors), count, axis=1)[:, : count + 1].sum(1)
            for part in blocks(len(members), block_for(len(members)))
        ]
    )
    return [int(row) for row in members[np.argsort(spread, kind="stable")]]


def _next_new(rows: np.ndarray, waiting: list[int], taken: np.ndarray, copy_threshold: float) -> int | None:
    """The first waiting row that is no copy of one taken; it and the copies before it no longer wait."""
    while waiting:
        row = waiting.pop(0)
        if not len(taken) or (taken @ unit(rows[row : row + 1])[0]).max() < copy_threshold:
            return row
    return None


def _by_margin(
    rows: np.ndarray,
    labels: np.ndarray,
    probs: np.ndarray,
    open_rows: np.ndarray,
    count: int,
    copy_threshold: float,
    seed: int,
) -> tuple[np.ndarray, dict[int, int]]:
    """Uncertain rows, one from each cluster of a shortlist (Zhdanov, 2019), then the rest of it by margin.

    Also the sizes of the clusters, by the rows that stand for them.
    """
    margin = _margin(probs[open_rows])
    order = np.argsort(margin, kind="stable")[: SHORTLIST * count]
    shortlist = open_rows[order]
    assigned = _spread(unit(rows[shortlist]), 1 - margin[order], count, seed)
    # Rows are in order of margin: the first of a cluster is the least certain.
    _, leaders, sizes = np.unique(assigned, return_index=True, return_counts=True)
    similar = dict(zip(shortlist[leaders].tolist(), sizes.tolist(), strict=True))
    leaders.sort()
    others = np.setdiff1d(np.arange(len(shortlist)), leaders)
    waiting = [int(row) for row in shortlist[np.concatenate([leaders, others])]]
    taken = unit(rows[labels >= 0])
    chosen: list[int] = []
    while len(chosen) < count and (row := _next_new(rows, waiting, taken, copy_threshold)) is not None:
        chosen.append(row)
        taken = np.vstack([taken, unit(rows[row : row + 1])])
    return np.array(chosen, np.int64), similar


def _margin(probs: np.ndarray) -> np.ndarray:
    """Probability of the likeliest class minus that of the next."""
    top = np.partition(probs, -2, axis=1)[:, -2:]
    return np.asarray(top[:, 1] - top[:, 0])


def _spread(vectors: np.ndarray, weights: np.ndarray, clusters: int, seed: int) -> np.ndarray:
    from sklearn.cluster import KMeans  # here, because it takes a second to import
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        fitted = KMeans(min(clusters, len(vectors)), random_state=seed)
        return np.asarray(fitted.fit_predict(vectors, sample_weight=np.maximum(weights, 1e-6)))


def _reason(probs: np.ndarray, names: Sequence[str] | None, similar: int | None) -> str:
    """Why a row was chosen by margin; `similar` is the size of the cluster that it stands for, None if it is no leader.

    A batch is spread out, so that it may hold rows of which the model is sure: these are not between two classes.
    """
    first, second = np.argsort(-probs, kind="stable")[:2]
    words = [str(number) if names is None else names[number] for number in (first, second)]
    if probs[first] < CLOSE * probs[second]:
        return f"between {words[0]} ({probs[first]:.0%}) and {words[1]} ({probs[second]:.0%})"
    sure = "over 99%" if probs[first] >= 0.995 else f"{probs[first]:.0%}"
    why = "one of the least certain that are left"
    if similar is not None:
        why = f"the least certain of {similar} similar images" if similar > 1 else "unlike the other suggestions"
    return f"probably {words[0]} ({sure}), {why}"
