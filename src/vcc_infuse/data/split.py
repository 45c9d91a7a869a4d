"""Which training examples keep their label and which form the unlabeled pool.

All draws come from numpy's RandomState, whose stream is frozen: a seed gives the same split on any machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..errors import OptionError, UserError, check_integer, check_range
from .groups import sample_groups


@dataclass(frozen=True, eq=False)
class Split:
    """Which rows of the training set are labeled and which form the pool."""

    labeled: np.ndarray  # by class
    pool: np.ndarray  # used without their label: labeled rows first, if they belong to it, then ascending
    held_out: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))  # labeled rows kept out of both


@dataclass(frozen=True)
class LongTail:
    """Class sizes that fall geometrically from the first class to the last: first · gamma^(−c / (classes − 1)).

    Args:
        first: labeled images of the largest class (required).
        gamma: size of the largest class divided by the size of the smallest.
        beta: labeled fraction of all images kept of a class.
        unlabeled_first: unlabeled images of the largest class, instead of beta.
        gamma_u: gamma of the unlabeled images; negative reverses the order of the classes; gamma if not given.
    """

    first: int | None = None
    gamma: float = 100.0
    beta: float | None = None
    unlabeled_first: int | None = None
    gamma_u: float | None = None


def balanced(
    y: np.ndarray, labels: int, classes: int | Sequence[str], seed: int, include_labeled: bool = True
) -> Split:
    """`labels` labels in total, spread evenly over the classes; a remainder goes to random classes, one each.

    With the same seed, fewer labels are a subset of more if both numbers are multiples of the number of classes.
    """
    names = _class_names(classes)
    rng = _random_state(seed)
    if labels < len(names):
        raise OptionError("labels", labels, f"must be at least {len(names)}, one per class")
    rows = [rng.permutation(np.flatnonzero(y == c)) for c in range(len(names))]
    sizes = np.full(len(names), labels // len(names))
    sizes[rng.permutation(len(names))[: labels % len(names)]] += 1
    if any(len(available) < size for available, size in zip(rows, sizes, strict=True)):
        least, name = min((len(r), name) for r, name in zip(rows, names, strict=True))
        limit = f"must be at most {least * len(names)}, because class {name!r} has {least} labeled images"
        raise OptionError("labels", labels, limit)
    labeled = np.concatenate([r[:n] for r, n in zip(rows, sizes, strict=True)])
    return _make_split(labeled, np.setdiff1d(np.arange(len(y)), labeled), include_labeled)


def long_tailed(
    y: np.ndarray, classes: int | Sequence[str], seed: int, tail: LongTail, include_labeled: bool = False
) -> Split:
    """Labeled images and a disjoint pool, both with the class sizes of `tail`.

    The largest class of the pool has `unlabeled_first` images, or first·(1−beta)/beta. Rows without a label always
    belong to the pool; without `unlabeled_first` and `beta` they are all of it.
    """
    names = _class_names(classes)
    rng = _random_state(seed)
    first, pool_first = _tail_firsts(y, tail)
    sizes = tail_sizes(first, tail.gamma, len(names))
    gamma_u = tail.gamma if tail.gamma_u is None else tail.gamma_u
    pool_sizes = tail_sizes(pool_first, gamma_u, len(names))
    rows = [rng.permutation(np.flatnonzero(y == c)) for c in range(len(names))]
    for name, available, n, m in zip(names, rows, sizes, pool_sizes, strict=True):
        if not n:
            reason = f"must be larger, because class {name!r} gets no label"
            raise OptionError("long_tail.first", first, reason, f"or lower long_tail.gamma ({tail.gamma:g})")
        if len(available) < n + m:
            reason = f"must be smaller, because class {name!r} has {len(available)} images and needs {n}+{m}"
            remedy = "or make the pool smaller (long_tail.unlabeled_first, or a larger long_tail.beta)"
            raise OptionError("long_tail.first", first, reason, remedy)
    labeled = np.concatenate([r[:n] for r, n in zip(rows, sizes, strict=True)])
    rest = [r[n : n + m] for r, n, m in zip(rows, sizes, pool_sizes, strict=True)]
    return _make_split(labeled, np.sort(np.concatenate([*rest, np.flatnonzero(y < 0)])), include_labeled)


def tail_sizes(first: int, gamma: float, classes: int) -> list[int]:
    """⌊first·|gamma|^(−c/(classes−1))⌋ for c = 0 … classes−1, in reverse order for a negative gamma."""
    # The tiny factor keeps an integer an integer: 27·27^(−1/3) must be 9, not ⌊8.999…⌋.
    sizes = [math.floor(first * abs(gamma) ** (-c / (classes - 1)) * (1 + 1e-12)) for c in range(classes)]
    return sizes if gamma > 0 else sizes[::-1]


def _tail_firsts(y: np.ndarray, tail: LongTail) -> tuple[int, int]:
    """The sizes of the largest class, labeled and in the pool."""
    if tail.first is None:
        rule = "must be the number of labels of the largest class"
        raise OptionError("long_tail.first", None, rule, "for example 60")
    for name, ratio in (("gamma", tail.gamma), ("gamma_u", tail.gamma_u)):
        if ratio is not None and not 1 <= abs(ratio) < math.inf:
            rule = "must be at least 1, or at most -1 to reverse the order of the classes"
            raise OptionError(f"long_tail.{name}", ratio, rule)
    first = check_integer("long_tail.first", tail.first)
    if tail.beta is not None and tail.unlabeled_first is not None:
        raise UserError("long_tail.beta and long_tail.unlabeled_first exclude each other; give one of them")
    if tail.beta is not None:
        beta = check_range("long_tail.beta", tail.beta, 0, 1, open_low=True, open_high=True)
        return first, round(first * (1 - beta) / beta)
    size = check_integer("long_tail.unlabeled_first", tail.unlabeled_first or 0, low=0)
    if not size and not (y < 0).any():
        raise UserError("all images have labels; set long_tail.beta or long_tail.unlabeled_first to size the pool")
    return first, size


def from_given_labels(y: np.ndarray, include_labeled: bool = True) -> Split:
    """Every label in `y` is shown (−1 = unlabeled), as for a folder with labeled/ and unlabeled/."""
    rows = np.flatnonzero(y >= 0)
    return _make_split(rows[np.argsort(y[rows], kind="stable")], np.flatnonzero(y < 0), include_labeled)


def hold_out(
    split: Split, y: np.ndarray, fraction: float, classes: Sequence[str], groups: np.ndarray | None = None
) -> Split:
    """Remove `fraction` of the labeled rows of every class, at least one, from both parts; always the same rows.

    With `groups`, of all training rows, whole groups are removed, as nearly as many rows as they allow.
    """
    rng = _random_state(0)
    held = []
    wanted = np.zeros(len(classes), np.int64)
    for number, name in enumerate(classes):
        rows = split.labeled[y[split.labeled] == number]
        if len(rows) < 2:
            problem = f"class {name!r} has {len(rows)} label, so none can be held out for the calibrator"
            raise UserError(f"{problem}; raise labels, or set the calibrator's option labels to labeled_strong")
        wanted[number] = min(max(1, round(fraction * len(rows))), len(rows) - 1)
        held.append(rng.permutation(rows)[: wanted[number]])
    out = np.concatenate(held)
    if groups is not None:
        out = split.labeled[sample_groups(y[split.labeled], groups[split.labeled], wanted, rng)]
        if not len(out):
            problem = "no label can be held out for the calibrator, because the labels of each class belong together"
            raise UserError(f"{problem}; label more, or set group_by to none")
    return replace(without(split, out), held_out=out)


def train_test_rows(
    y: np.ndarray, fraction: float = 0.2, groups: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers of a stratified training and test part, both ascending; always the same rows.

    ⌈fraction·N⌉ rows are taken in total, by the largest remainders; every class keeps at least one training row. With
    `groups`, (rows,), whole groups are taken, as nearly as many rows of each class as they allow.
    """
    rows = [np.flatnonzero(y == c) for c in np.unique(y)]
    exact = np.array([fraction * len(r) for r in rows])
    sizes = np.floor(exact).astype(int)
    spare = int(np.ceil(fraction * len(y))) - sizes.sum()
    sizes[np.argsort(sizes - exact, kind="stable")[:spare]] += 1
    sizes = np.minimum(sizes, [len(r) - 1 for r in rows])
    rng = _random_state(0)
    if groups is None:
        test = np.sort(np.concatenate([rng.permutation(r)[:n] for r, n in zip(rows, sizes, strict=True)]))
    else:
        test = sample_groups(np.searchsorted(np.unique(y), y), groups, sizes, rng)
    return np.setdiff1d(np.arange(len(y)), test), test


def validation_rows(y: np.ndarray, fraction: float, groups: np.ndarray | None = None) -> np.ndarray:
    """A stratified share of the labeled rows, ascending; always the same rows, and every class keeps a label.

    `groups`, of all rows, stay together.
    """
    labeled = np.flatnonzero(y >= 0)
    rows: np.ndarray = labeled[train_test_rows(y[labeled], fraction, None if groups is None else groups[labeled])[1]]
    if not len(rows):
        together = "" if groups is None else ", or labels that belong together"
        reason = f"cannot be taken, because every class has one label{together}"
        raise OptionError("validation", fraction, reason, "label more, or set it to none")
    return rows


def without(split: Split, rows: np.ndarray | None) -> Split:
    """The split without some rows."""
    if rows is None:
        return split
    return Split(*(part[~np.isin(part, rows)] for part in (split.labeled, split.pool, split.held_out)))


def _class_names(classes: int | Sequence[str]) -> list[str]:
    """The names, or 0, 1, 2, … if only their number is given."""
    return list(map(str, range(classes) if isinstance(classes, int) else classes))


def _random_state(seed: int) -> np.random.RandomState:
    return np.random.RandomState(check_integer("seed", seed, 0, 2**32 - 1))


def _make_split(labeled: np.ndarray, unlabeled: np.ndarray, include_labeled: bool) -> Split:
    """A split whose pool is `unlabeled`, after the labeled rows if they are included."""
    return Split(labeled, np.concatenate([labeled, unlabeled]) if include_labeled else unlabeled)
