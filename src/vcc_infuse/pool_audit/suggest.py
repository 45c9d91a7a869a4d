"""What to label next: images that stand for many others, and later for many of which a classifier is unsure."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np

from ..errors import OptionError, UserError, check_choice, check_integer, check_range
from .arrays import blocks, check_features, check_labels, check_probs, distances, main_directions, unit
from .duplicates import COSINE
from .ridge import fit_ridge
from .unknown import block_for

Strategy = Literal["auto", "coverage", "margin"]
ENOUGH = 4  # labels per class from which on a classifier says which groups it is unsure of
NEIGHBORS = 20
MOST_CLUSTERS = 500
MOST_MEMBERS = 2000  # of a cluster, to judge how typical a row is
FIT_ROWS = 20_000  # rows that clusters are fitted on
DIRECTIONS = 128  # in which clusters are fitted: ten times faster than in all
CLOSE = 4  # times as likely as the next class: from there on it is no close race


@dataclass(frozen=True)
class Suggestions:
    """Images to label next, the most useful first.

    Attributes:
        rows: their row numbers.
        reasons: one sentence for each.
        scores: the share of all images that it stands for; with `margin` each of these counts by how close to even its
            two likeliest classes are, and less the more labels there are among them.
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
    groups: PoolGroups | None = None,
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
        strategy: `coverage` takes the most typical row of the largest groups without a label, `margin` that of groups
            with many rows between two classes and few labels; `auto` is coverage up to four labels per class.
        copy_threshold: no two suggestions, and no suggestion and a label, have a cosine above it.
        seed: of k-means.
        groups: of these features, where the same pool is asked about again and again; they have a seed of their own.

    >>> features = [[1.0, 0.0], [1.0, 0.1], [1.0, 0.2], [0.0, 1.0], [0.2, 1.0]]
    >>> suggest_labels(features, count=1).reasons
    ('most typical of 5 similar images, none of them labeled',)
    """
    rows = check_features("features", features)
    given = np.full(len(rows), -1) if labels is None else check_labels("labels", labels, len(rows), low=-1)
    open_rows = _candidates(given, candidates)
    wanted = min(check_integer("count", count), len(open_rows))
    check_range("copy_threshold", copy_threshold, -1, 1)
    groups = PoolGroups(rows, seed=seed) if groups is None else groups
    if len(groups.rows) != len(rows):
        raise UserError(f"groups must be those of features, of {len(rows)} rows, got {len(groups.rows)}")
    if choose_strategy(given, strategy, classes, probs) == "coverage":
        offer = _Offer(rows, given, open_rows, np.ones(len(rows)), wanted, groups)
        found = offer.choose(wanted, copy_threshold, lambda group: (offer.covered[group], -offer.worth[group]))
        return Suggestions(*_columns(found, [one.reason() for one in found], len(rows)), "coverage")
    predicted = _predict(rows, given) if probs is None else check_probs("probs", probs)
    if len(predicted) != len(rows):
        raise UserError(f"probs must have one row per row of features, {len(rows)}, got {len(predicted)}")
    offer = _Offer(rows, given, open_rows, 1 - _margin(predicted), wanted, groups)
    found = offer.choose(wanted, copy_threshold, lambda group: -offer.worth[group] / (1 + offer.covered[group]))
    reasons = [_reason(predicted[one.row], names, one.size) for one in found]
    return Suggestions(*_columns(found, reasons, len(rows)), "margin")


def _candidates(labels: np.ndarray, candidates: Any) -> np.ndarray:
    open_rows = np.flatnonzero(labels < 0)
    if candidates is not None:
        open_rows = np.intersect1d(open_rows, np.asarray(candidates, np.int64))
    if len(open_rows) == 0:
        raise UserError("every candidate is labeled already; add images to the pool")
    return open_rows


def choose_strategy(labels: np.ndarray, strategy: Strategy, classes: int | None, probs: Any) -> str:
    """What `suggest_labels` does: coverage or margin."""
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


class _Found(NamedTuple):
    """A suggestion, the size of its group, how many of that were labeled or chosen, and what it is worth."""

    row: int
    size: int
    covered: int
    worth: float

    def reason(self) -> str:
        """Why it was chosen for coverage."""
        labels = "none of them labeled" if not self.covered else f"{self.covered} of them labeled or chosen"
        return f"most typical of {self.size} similar images, {labels}"


def _columns(found: list[_Found], reasons: list[str], rows: int) -> tuple[np.ndarray, tuple[str, ...], np.ndarray]:
    scores = np.array([one.worth for one in found], float) / rows
    return np.array([one.row for one in found], np.int64), tuple(reasons), scores


class PoolGroups:
    """Groups of similar rows, as many as are asked for. What does not depend on their number is computed once.

    Args:
        features: of the pool, of shape (rows, width), as `unit_rows` makes them.
        seed: of k-means.

    >>> PoolGroups([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]]).assigned(2)
    array([0, 0, 1], dtype=int32)
    """

    def __init__(self, features: Any, *, seed: int = 0) -> None:
        self.rows = np.asarray(features)
        self.seed = seed
        self._last: tuple[int, np.ndarray] | None = None

    def assigned(self, number: int) -> np.ndarray:
        """The group of each row, by k-means on at most `FIT_ROWS` of them; the same as before for the same number."""
        if self._last is None or self._last[0] != number:
            self._last = (number, self._assign(number))
        return self._last[1]

    @cached_property
    def _basis(self) -> np.ndarray:
        width = self.rows.shape[1]
        return main_directions(self.rows, DIRECTIONS) if width > DIRECTIONS else np.eye(width, dtype=np.float32)

    @cached_property
    def _sample(self) -> np.ndarray:
        return np.asarray(unit(self.rows[:: -(-len(self.rows) // FIT_ROWS)]) @ self._basis)

    def _assign(self, number: int) -> np.ndarray:
        from sklearn.cluster import KMeans  # here, because it takes a second to import
        from sklearn.exceptions import ConvergenceWarning

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct rows than clusters: some stay empty
            fitted = KMeans(number, random_state=self.seed).fit(self._sample)
        if len(self._sample) == len(self.rows):
            return np.asarray(fitted.labels_)
        parts = blocks(len(self.rows))
        return np.concatenate([fitted.predict(unit(self.rows[part]) @ self._basis) for part in parts])


class _Offer:
    """As many groups of similar rows as there will be labels, as TypiClust makes them (Hacohen et al., 2022).

    Attributes:
        sizes: rows of each group.
        worth: what its rows are worth together, of shape (groups,).
        covered: how many of them are labeled or chosen.
    """

    def __init__(
        self,
        rows: np.ndarray,
        labels: np.ndarray,
        open_rows: np.ndarray,
        worth: np.ndarray,
        count: int,
        groups: PoolGroups,
    ) -> None:
        labeled = np.flatnonzero(labels >= 0)
        number = min(len(labeled) + count, MOST_CLUSTERS, len(rows))
        assigned = groups.assigned(number)
        self.rows = rows
        self.taken = unit(rows[labeled])
        self.sizes = np.bincount(assigned, minlength=number)
        self.worth = np.bincount(assigned, weights=worth * (labels < 0), minlength=number)
        self.covered = np.bincount(assigned[labeled], minlength=number)
        self.members = {group: open_rows[assigned[open_rows] == group] for group in range(number)}

    def choose(self, count: int, copy_threshold: float, first: Callable[[int], Any]) -> list[_Found]:
        """Again and again the most typical row of the group that comes first, unless it is a copy."""
        found: list[_Found] = []
        waiting: dict[int, list[int]] = {}
        while len(found) < count and self.members:
            group = min(self.members, key=first)
            if group not in waiting:
                waiting[group] = _typical_first(self.rows, self.members[group])
            row = _next_new(self.rows, waiting[group], self.taken, copy_threshold)
            if row is None:
                del self.members[group]
                continue
            covered = int(self.covered[group])
            found.append(_Found(row, int(self.sizes[group]), covered, float(self.worth[group]) / (1 + covered)))
            self.taken = np.vstack([self.taken, unit(self.rows[row : row + 1])])
            self.covered[group] += 1
        return found


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


def _margin(probs: np.ndarray) -> np.ndarray:
    """Probability of the likeliest class minus that of the next."""
    top = np.partition(probs, -2, axis=1)[:, -2:]
    return np.asarray(top[:, 1] - top[:, 0])


def _reason(probs: np.ndarray, names: Sequence[str] | None, similar: int) -> str:
    """Why a row was chosen by margin; `similar` is the size of its group, of which it is typical.

    It may be a row of which the model is sure: that is not between two classes, but others in its group may be.
    """
    first, second = np.argsort(-probs, kind="stable")[:2]
    words = [str(number) if names is None else names[number] for number in (first, second)]
    if probs[first] < CLOSE * probs[second]:
        return f"between {words[0]} ({probs[first]:.0%}) and {words[1]} ({probs[second]:.0%})"
    sure = "over 99%" if probs[first] >= 0.995 else f"{probs[first]:.0%}"
    why = f"typical of {similar} similar images with few labels" if similar > 1 else "unlike all others"
    return f"probably {words[0]} ({sure}), {why}"
