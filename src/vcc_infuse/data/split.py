"""Which training examples keep their label and which form the unlabeled pool.

All draws come from numpy's RandomState, whose stream is frozen: a seed gives the same split on any machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..errors import OptionError, UserError
from ..validation import check_integer


@dataclass(frozen=True, eq=False)
class Split:
    """Row numbers of the training set: the labeled rows by class, and the pool (labeled rows first, then ascending).

    `held_out` are labeled rows kept out of both.
    """

    labeled: np.ndarray
    pool: np.ndarray
    held_out: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))


def balanced(
    y: np.ndarray, labels: int, classes: int | Sequence[str], seed: int, include_labeled: bool = True
) -> Split:
    """`labels` labels in total, spread evenly over the classes; a remainder goes to random classes, one each.

    With the same seed, fewer labels are a subset of more if both numbers are multiples of the number of classes.
    """
    names, rng = class_names(classes), random_state(seed)
    if labels < len(names):
        raise OptionError("labels", labels, f"must be at least {len(names)}, one per class")
    rows = shuffled_rows(y, len(names), rng)
    sizes = np.full(len(names), labels // len(names))
    sizes[rng.permutation(len(names))[: labels % len(names)]] += 1
    for available, size in zip(rows, sizes, strict=True):
        if len(available) < size:
            least, name = min((len(r), name) for r, name in zip(rows, names, strict=True))
            limit = f"must be at most {least * len(names)}, because class {name!r} has {least} labeled images"
            raise OptionError("labels", labels, limit)
    labeled = np.concatenate([r[:n] for r, n in zip(rows, sizes, strict=True)])
    return make_split(labeled, np.setdiff1d(np.arange(len(y)), labeled), include_labeled)


def from_given_labels(y: np.ndarray, include_labeled: bool = True) -> Split:
    """Every label in `y` is shown (−1 = unlabeled), as for a folder with labeled/ and unlabeled/."""
    rows = np.flatnonzero(y >= 0)
    return make_split(rows[np.argsort(y[rows], kind="stable")], np.flatnonzero(y < 0), include_labeled)


def hold_out(split: Split, y: np.ndarray, fraction: float, classes: Sequence[str]) -> Split:
    """Remove `fraction` of the labeled rows of every class, at least one, from both parts; always the same rows."""
    rng, held = random_state(0), []
    for number, name in enumerate(classes):
        rows = split.labeled[y[split.labeled] == number]
        if len(rows) < 2:
            raise UserError(
                f"class {name!r} has {len(rows)} label, so none can be held out for the calibrator; "
                "raise labels, or set the calibrator's option labels to labeled_strong"
            )
        count = min(max(1, round(fraction * len(rows))), len(rows) - 1)
        held.append(rng.permutation(rows)[:count])
    out = np.concatenate(held)
    return Split(split.labeled[~np.isin(split.labeled, out)], split.pool[~np.isin(split.pool, out)], out)


def train_test_rows(y: np.ndarray, fraction: float = 0.2) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers of a stratified training and test part, both ascending; always the same rows.

    Test sizes follow the largest remainders, so that ⌈fraction·N⌉ rows are taken in total. Every class keeps at least
    one training row.
    """
    rows = [np.flatnonzero(y == c) for c in np.unique(y)]
    exact = np.array([fraction * len(r) for r in rows])
    sizes = np.floor(exact).astype(int)
    spare = int(np.ceil(fraction * len(y))) - sizes.sum()
    sizes[np.argsort(sizes - exact, kind="stable")[:spare]] += 1
    sizes = np.minimum(sizes, [len(r) - 1 for r in rows])
    rng = np.random.RandomState(0)
    test = np.sort(np.concatenate([rng.permutation(r)[:n] for r, n in zip(rows, sizes, strict=True)]))
    return np.setdiff1d(np.arange(len(y)), test), test


def validation_rows(y: np.ndarray, fraction: float) -> np.ndarray:
    """A stratified share of the labeled rows, ascending; always the same rows, and every class keeps a label."""
    labeled = np.flatnonzero(y >= 0)
    rows: np.ndarray = labeled[train_test_rows(y[labeled], fraction)[1]]
    if not len(rows):
        reason = "cannot be taken, because every class has one label"
        raise OptionError("validation", fraction, reason, "label more, or set it to none")
    return rows


def without(split: Split, rows: np.ndarray) -> Split:
    """The split without some rows."""
    return Split(*(part[~np.isin(part, rows)] for part in (split.labeled, split.pool, split.held_out)))


def class_names(classes: int | Sequence[str]) -> list[str]:
    """The names, or 0, 1, 2, … if only their number is given."""
    return [str(c) for c in (range(classes) if isinstance(classes, int) else classes)]


def random_state(seed: int) -> np.random.RandomState:
    """The generator of a split."""
    return np.random.RandomState(check_integer("seed", seed, 0, 2**32 - 1))


def shuffled_rows(y: np.ndarray, classes: int, rng: np.random.RandomState) -> list[np.ndarray]:
    """The rows of each class in random order."""
    return [rng.permutation(np.flatnonzero(y == c)) for c in range(classes)]


def make_split(labeled: np.ndarray, unlabeled: np.ndarray, include_labeled: bool) -> Split:
    """A split whose pool is `unlabeled`, after the labeled rows if they are included."""
    return Split(labeled, np.concatenate([labeled, unlabeled]) if include_labeled else unlabeled)
