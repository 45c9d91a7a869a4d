"""Long-tailed splits: class sizes that fall geometrically, as in the imbalanced benchmarks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import OptionError, UserError
from ..validation import check_integer, check_range
from .split import Split, class_names, make_split, random_state, shuffled_rows


@dataclass(frozen=True)
class LongTail:
    """Class sizes that fall geometrically from the first class to the last.

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


def long_tailed(
    y: np.ndarray, classes: int | Sequence[str], seed: int, tail: LongTail, include_labeled: bool = False
) -> Split:
    """Labeled images and a disjoint pool, both with the class sizes of `tail`.

    The largest class of the pool has `unlabeled_first` images, or first·(1−beta)/beta. Rows without a label always
    belong to the pool; without `unlabeled_first` and `beta` they are all of it.
    """
    names, rng = class_names(classes), random_state(seed)
    first, gamma_u = _check(tail), tail.gamma if tail.gamma_u is None else tail.gamma_u
    sizes = tail_sizes(first, tail.gamma, len(names))
    pool_sizes = tail_sizes(_pool_first(y, first, tail), gamma_u, len(names))
    rows = shuffled_rows(y, len(names), rng)
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
    return make_split(labeled, np.sort(np.concatenate([*rest, np.flatnonzero(y < 0)])), include_labeled)


def tail_sizes(first: int, gamma: float, classes: int) -> list[int]:
    """⌊first·|gamma|^(−c/(classes−1))⌋ for c = 0 … classes−1, in reverse order for a negative gamma."""
    # The tiny factor keeps an integer an integer: 27·27^(−1/3) must be 9, not ⌊8.999…⌋.
    sizes = [math.floor(first * abs(gamma) ** (-c / (classes - 1)) * (1 + 1e-12)) for c in range(classes)]
    return sizes if gamma > 0 else sizes[::-1]


def _check(tail: LongTail) -> int:
    if tail.first is None:
        raise OptionError(
            "long_tail.first", None, "must be the number of labels of the largest class", "for example 60"
        )
    for name, ratio in (("gamma", tail.gamma), ("gamma_u", tail.gamma_u)):
        if ratio is not None and not 1 <= abs(ratio) < math.inf:
            rule = "must be at least 1, or at most -1 to reverse the order of the classes"
            raise OptionError(f"long_tail.{name}", ratio, rule)
    return check_integer("long_tail.first", tail.first)


def _pool_first(y: np.ndarray, first: int, tail: LongTail) -> int:
    if tail.beta is not None and tail.unlabeled_first is not None:
        raise UserError("long_tail.beta and long_tail.unlabeled_first exclude each other; give one of them")
    if tail.beta is not None:
        beta = check_range("long_tail.beta", tail.beta, 0, 1, open_low=True, open_high=True)
        return round(first * (1 - beta) / beta)
    size = check_integer("long_tail.unlabeled_first", tail.unlabeled_first or 0, low=0)
    if not size and not (y < 0).any():
        raise UserError(
            "all images have labels; set long_tail.beta or long_tail.unlabeled_first to the size of the pool"
        )
    return size
