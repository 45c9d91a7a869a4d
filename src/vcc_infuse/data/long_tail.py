"""TODO."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..errors import UserError
from .split import _BETA, _FIRST, _GAMMA, _GAMMA_U, _HEAD, Split, _names, _rng, _shuffled, _split


def long_tail(
    y: np.ndarray,
    classes: int | Sequence[str],
    seed: int,
    first: int,
    gamma: float,
    beta: float | None = None,
    unlabeled_first: int | None = None,
    gamma_u: float | None = None,
    include_labeled: bool = False,
) -> Split:
    """Class sizes that fall from `first` to first/gamma, disjoint for the labeled images and the pool.

    The pool's largest class is `unlabeled_first`, or first·(1−beta)/beta given the labeled share `beta`.
    Rows without a label always belong to the pool; with neither argument they are all of it. A negative
    `gamma_u` makes the labeled tail the pool's head.
    """
    names, rng = _names(classes), _rng(seed)
    _check_tail(first, gamma, unlabeled_first, gamma_u)
    head = _pool_head(y, first, beta, unlabeled_first)
    sizes = tail_sizes(first, gamma, len(names))
    pool_sizes = tail_sizes(head, gamma if gamma_u is None else gamma_u, len(names))
    rows = _shuffled(y, len(names), rng)
    for name, have, n, m in zip(names, rows, sizes, pool_sizes, strict=True):
        if not n:
            raise UserError(f"{_FIRST} {first}: class {name!r} gets no label; raise it or lower {_GAMMA} {gamma:g}")
        if len(have) < n + m:
            remedy = f"lower it or make the pool smaller ({_HEAD}, or a larger {_BETA})"
            raise UserError(f"{_FIRST} {first}: class {name!r} has {len(have)} of {n}+{m} images; {remedy}")
    labeled = np.concatenate([r[:n] for r, n in zip(rows, sizes, strict=True)])
    rest = [r[n : n + m] for r, n, m in zip(rows, sizes, pool_sizes, strict=True)]
    return _split(labeled, np.sort(np.concatenate([*rest, np.flatnonzero(y < 0)])), include_labeled)


def tail_sizes(first: int, gamma: float, classes: int) -> list[int]:
    """⌊first·|gamma|^(−c/(classes−1))⌋ for c = 0 … classes−1, in reverse order for a negative gamma."""
    # The tiny factor keeps a whole number whole: 27·27^(−1/3) must be 9, not ⌊8.999…⌋.
    sizes = [math.floor(first * abs(gamma) ** (-c / (classes - 1)) * (1 + 1e-12)) for c in range(classes)]
    return sizes if gamma > 0 else sizes[::-1]


def _check_tail(first: int, gamma: float, unlabeled_first: int | None, gamma_u: float | None) -> None:
    if first < 1:
        raise UserError(f"{_FIRST} {first}: the largest class needs a label; give at least 1")
    if unlabeled_first is not None and unlabeled_first < 0:
        raise UserError(f"{_HEAD} {unlabeled_first}: give a number of images of at least 0")
    for option, ratio in ((_GAMMA, gamma), (_GAMMA_U, gamma_u)):
        if ratio is not None and not 1 <= abs(ratio) < math.inf:
            raise UserError(f"{option} {ratio}: give a number of at least 1, or at most -1 to turn the order round")


def _pool_head(y: np.ndarray, first: int, beta: float | None, unlabeled_first: int | None) -> int:
    if beta is not None and unlabeled_first is not None:
        raise UserError(f"{_BETA} {beta} and {_HEAD} {unlabeled_first} say the same; give one of them")
    if beta is not None:
        if not 0 < beta < 1:
            raise UserError(f"{_BETA} {beta}: the labeled share must lie between 0 and 1")
        return round(first * (1 - beta) / beta)
    if not unlabeled_first and not (y < 0).any():
        raise UserError(f"all images have labels: give {_BETA} or {_HEAD} to say how many form the pool")
    return unlabeled_first or 0
