"""A fixed test set for sources that bring none: a fifth of every class, the same for every seed."""

import numpy as np


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
