"""A random table of scored rows with many ties, and its order by a plain Python sort."""

import numpy as np

from vcc_infuse.selectors.ranking import Scored


def make_table(count, seed=0, levels=5):
    rng = np.random.default_rng(seed)
    scores = rng.integers(levels, size=count).astype(np.float32)
    selected, confidence = rng.random(count) < 0.6, rng.integers(3, size=count) / 3
    return Scored(np.arange(count), scores, selected, confidence, rng.integers(4, size=count))


def slow_order(rows):
    def key(i):
        first = -rows.scores[i] if rows.selected[i] else 0
        return (not rows.selected[i], first, -rows.confidence[i], rows.ids[i])

    return sorted(range(len(rows.ids)), key=key)
