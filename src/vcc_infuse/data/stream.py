"""An endless stream of random permutations that can be entered at any position.

Every example is seen equally often, and a resumed run needs no saved position: element `i` depends on the seed
and `i` alone.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np


class Stream:
    """Positions 0, 1, 2, … of concatenated random permutations of `ids`."""

    def __init__(self, ids: np.ndarray, *key: int) -> None:
        self.ids = np.asarray(ids)
        self.key = key
        self._permutation = lru_cache(maxsize=4)(self._draw)

    def _draw(self, number: int) -> np.ndarray:
        return np.random.default_rng([*self.key, number]).permutation(self.ids)

    def at(self, start: int, count: int) -> np.ndarray:
        """The ids at positions start … start + count − 1."""
        size = len(self.ids)
        first, last = start // size, (start + count - 1) // size
        joined = np.concatenate([self._permutation(number) for number in range(first, last + 1)])
        return joined[start - first * size :][:count]
