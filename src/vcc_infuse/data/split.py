"""Which training images keep their label and which form the unlabeled pool.

All draws come from numpy's RandomState, whose stream is frozen: a seed means the same split on any machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..errors import UserError

# As the command line spells them, where most users are.
_FIRST, _HEAD, _BETA = "--long_tail.first", "--long_tail.unlabeled_first", "--long_tail.beta"


_GAMMA, _GAMMA_U = "--long_tail.gamma", "--long_tail.gamma_u"


@dataclass(frozen=True, eq=False)
class Split:
    """Training rows: the labeled ones by class, and the pool (labeled ones first, then ascending).

    `held_out` are labeled rows kept out of both.
    """

    labeled: np.ndarray
    pool: np.ndarray
    held_out: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))


def balanced(
    y: np.ndarray, labels: int, classes: int | Sequence[str], seed: int, include_labeled: bool = True
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
    labeled = np.concatenate([r[:n] for r, n in zip(rows, sizes, strict=True)])
    return _split(labeled, np.setdiff1d(np.arange(len(y)), labeled), include_labeled)


def given(y: np.ndarray, include_labeled: bool = True) -> Split:
    """Every label is shown: for sources that themselves say what is labeled (labeled/ + unlabeled/)."""
    rows = np.flatnonzero(y >= 0)
    return _split(rows[np.argsort(y[rows], kind="stable")], np.flatnonzero(y < 0), include_labeled)


def hold_out(split: Split, y: np.ndarray, share: float, classes: Sequence[str]) -> Split:
    """Keep `share` of every class's labeled rows, at least one, out of both parts; the same rows each time."""
    rng, held = _rng(0), []
    for number, name in enumerate(classes):
        rows = split.labeled[y[split.labeled] == number]
        if len(rows) < 2:
            raise UserError(
                f"class {name!r} has {len(rows)} label, so none can be held out for the calibrator; "
                "raise --labels or give --calibrator.labels labeled_strong"
            )
        count = min(max(1, round(share * len(rows))), len(rows) - 1)
        held.append(rng.permutation(rows)[:count])
    out = np.concatenate(held)
    return Split(split.labeled[~np.isin(split.labeled, out)], split.pool[~np.isin(split.pool, out)], out)


def _names(classes: int | Sequence[str]) -> list[str]:
    return [str(c) for c in (range(classes) if isinstance(classes, int) else classes)]


def _rng(seed: int) -> np.random.RandomState:
    if not 0 <= seed < 2**32:
        raise UserError(f"--seed {seed}: must lie between 0 and 2³²−1")
    return np.random.RandomState(seed)


def _shuffled(y: np.ndarray, classes: int, rng: np.random.RandomState) -> list[np.ndarray]:
    return [rng.permutation(np.flatnonzero(y == c)) for c in range(classes)]


def _split(labeled: np.ndarray, rest: np.ndarray, include_labeled: bool) -> Split:
    return Split(labeled, np.concatenate([labeled, rest]) if include_labeled else rest)


def holdout(y: np.ndarray, fraction: float = 0.2) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers (train, test), both ascending; every class keeps at least one training row.

    Test sizes follow the largest remainders, so that ⌈fraction·N⌉ rows are held out in all.
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
