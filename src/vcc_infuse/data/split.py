"""Which training images keep their label and which form the unlabelled pool.

All draws come from numpy's RandomState, whose stream is frozen: a seed means the same split on any machine.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..errors import UserError

# As the command line spells them, where most users are.
_FIRST, _HEAD, _BETA = "--long_tail.first", "--long_tail.unlabelled_first", "--long_tail.beta"
_GAMMA, _GAMMA_U = "--long_tail.gamma", "--long_tail.gamma_u"


@dataclass(frozen=True, eq=False)
class Split:
    """Training rows: the labelled ones by class, and the pool (labelled ones first, then ascending).

    `held_out` are labelled rows kept out of both.
    """

    labelled: np.ndarray
    pool: np.ndarray
    held_out: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))


def balanced(
    y: np.ndarray, labels: int, classes: int | Sequence[str], seed: int, include_labelled: bool = True
) -> Split:
    """`labels` in all, spread evenly; what does not divide goes to randomly chosen classes, one each.

    With the same seed, fewer labels are a subset of more when both numbers divide by the number of classes.
    """
    names, rng = _names(classes), _rng(seed)
    if labels < len(names):
        raise UserError(f"--labels {labels}: fewer than the {len(names)} classes; give at least {len(names)}")
    rows = _shuffled(y, len(names), rng)
    sizes = np.full(len(names), labels // len(names))
    sizes[rng.permutation(len(names))[: labels % len(names)]] += 1
    for name, have, need in zip(names, rows, sizes, strict=True):
        if len(have) < need:
            raise UserError(f"--labels {labels}: class {name!r} has {len(have)} of {need} images; give fewer")
    labelled = np.concatenate([r[:n] for r, n in zip(rows, sizes, strict=True)])
    return _split(labelled, np.setdiff1d(np.arange(len(y)), labelled), include_labelled)


def long_tail(
    y: np.ndarray,
    classes: int | Sequence[str],
    seed: int,
    first: int,
    gamma: float,
    beta: float | None = None,
    unlabelled_first: int | None = None,
    gamma_u: float | None = None,
    include_labelled: bool = False,
) -> Split:
    """Class sizes that fall from `first` to first/gamma, disjoint for the labelled images and the pool.

    The pool's largest class is `unlabelled_first`, or first·(1−beta)/beta given the labelled share `beta`.
    Rows without a label always belong to the pool; with neither argument they are all of it. A negative
    `gamma_u` makes the labelled tail the pool's head.
    """
    names, rng = _names(classes), _rng(seed)
    _check_tail(first, gamma, unlabelled_first, gamma_u)
    head = _pool_head(y, first, beta, unlabelled_first)
    sizes = tail_sizes(first, gamma, len(names))
    pool_sizes = tail_sizes(head, gamma if gamma_u is None else gamma_u, len(names))
    rows = _shuffled(y, len(names), rng)
    for name, have, n, m in zip(names, rows, sizes, pool_sizes, strict=True):
        if not n:
            raise UserError(f"{_FIRST} {first}: class {name!r} gets no label; raise it or lower {_GAMMA} {gamma:g}")
        if len(have) < n + m:
            remedy = f"lower it or make the pool smaller ({_HEAD}, or a larger {_BETA})"
            raise UserError(f"{_FIRST} {first}: class {name!r} has {len(have)} of {n}+{m} images; {remedy}")
    labelled = np.concatenate([r[:n] for r, n in zip(rows, sizes, strict=True)])
    rest = [r[n : n + m] for r, n, m in zip(rows, sizes, pool_sizes, strict=True)]
    return _split(labelled, np.sort(np.concatenate([*rest, np.flatnonzero(y < 0)])), include_labelled)


def given(y: np.ndarray, include_labelled: bool = True) -> Split:
    """Every label is shown: for sources that themselves say what is labelled (labeled/ + unlabeled/)."""
    rows = np.flatnonzero(y >= 0)
    return _split(rows[np.argsort(y[rows], kind="stable")], np.flatnonzero(y < 0), include_labelled)


def hold_out(split: Split, y: np.ndarray, share: float, classes: Sequence[str]) -> Split:
    """Keep `share` of every class's labelled rows, at least one, out of both parts; the same rows each time."""
    rng, held = _rng(0), []
    for number, name in enumerate(classes):
        rows = split.labelled[y[split.labelled] == number]
        if len(rows) < 2:
            raise UserError(
                f"class {name!r} has {len(rows)} label, so none can be held out for the calibrator; "
                "raise --labels or give --calibrator.labels labelled_strong"
            )
        count = min(max(1, round(share * len(rows))), len(rows) - 1)
        held.append(rng.permutation(rows)[:count])
    out = np.concatenate(held)
    return Split(split.labelled[~np.isin(split.labelled, out)], split.pool[~np.isin(split.pool, out)], out)


def tail_sizes(first: int, gamma: float, classes: int) -> list[int]:
    """⌊first·|gamma|^(−c/(classes−1))⌋ for c = 0 … classes−1, in reverse order for a negative gamma."""
    # The tiny factor keeps a whole number whole: 27·27^(−1/3) must be 9, not ⌊8.999…⌋.
    sizes = [math.floor(first * abs(gamma) ** (-c / (classes - 1)) * (1 + 1e-12)) for c in range(classes)]
    return sizes if gamma > 0 else sizes[::-1]


def _check_tail(first: int, gamma: float, unlabelled_first: int | None, gamma_u: float | None) -> None:
    if first < 1:
        raise UserError(f"{_FIRST} {first}: the largest class needs a label; give at least 1")
    if unlabelled_first is not None and unlabelled_first < 0:
        raise UserError(f"{_HEAD} {unlabelled_first}: give a number of images of at least 0")
    for option, ratio in ((_GAMMA, gamma), (_GAMMA_U, gamma_u)):
        if ratio is not None and not 1 <= abs(ratio) < math.inf:
            raise UserError(f"{option} {ratio}: give a number of at least 1, or at most -1 to turn the order round")


def _pool_head(y: np.ndarray, first: int, beta: float | None, unlabelled_first: int | None) -> int:
    if beta is not None and unlabelled_first is not None:
        raise UserError(f"{_BETA} {beta} and {_HEAD} {unlabelled_first} say the same; give one of them")
    if beta is not None:
        if not 0 < beta < 1:
            raise UserError(f"{_BETA} {beta}: the labelled share must lie between 0 and 1")
        return round(first * (1 - beta) / beta)
    if not unlabelled_first and not (y < 0).any():
        raise UserError(f"all images have labels: give {_BETA} or {_HEAD} to say how many form the pool")
    return unlabelled_first or 0


def _names(classes: int | Sequence[str]) -> list[str]:
    return [str(c) for c in (range(classes) if isinstance(classes, int) else classes)]


def _rng(seed: int) -> np.random.RandomState:
    if not 0 <= seed < 2**32:
        raise UserError(f"--seed {seed}: must lie between 0 and 2³²−1")
    return np.random.RandomState(seed)


def _shuffled(y: np.ndarray, classes: int, rng: np.random.RandomState) -> list[np.ndarray]:
    return [rng.permutation(np.flatnonzero(y == c)) for c in range(classes)]


def _split(labelled: np.ndarray, rest: np.ndarray, include_labelled: bool) -> Split:
    return Split(labelled, np.concatenate([labelled, rest]) if include_labelled else rest)
