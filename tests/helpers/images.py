"""Small color images of three classes that a network with random weights can tell apart."""

from __future__ import annotations

import numpy as np

from vcc_infuse import SSLData


def striped(rows: int = 48, labeled: int = 12, test: int = 24, side: int = 32) -> SSLData:
    """Stripes of a class's color on noise; the first `labeled` training images keep their labels."""
    rng = np.random.default_rng(0)
    y = np.arange(rows + test) % 3
    x = rng.integers(0, 90, (rows + test, side, side, 3))
    for i, label in enumerate(y):
        x[i, :: 2 + label, :, label] += 120
    x = x.astype(np.uint8)
    labels = np.where(np.arange(rows) < labeled, y[:rows], -1)
    return SSLData.from_arrays(x[:rows], labels, x[rows:], y[rows:])
