"""The random controls."""

import numpy as np
import pytest

from vcc_infuse.selectors import Random, RandomOnline


def test_random_keeps_its_subset_and_random_online_changes_it(make_pool):
    pools = [make_pool(number=n) for n in (0, 10)]
    static = [set(Random(keep=0.2).select(pool, 60).ids.tolist()) for pool in pools]
    online = [set(RandomOnline(keep=0.2).select(pool, 60).ids.tolist()) for pool in pools]
    assert static[0] == static[1]
    assert len(online[0] & online[1]) < 30


def test_random_online_reaches_every_example(make_pool):
    counts = np.zeros(300)
    for number in range(60):
        counts[RandomOnline(keep=0.2).select(make_pool(number=number), 60).ids.numpy()] += 1
    assert counts.min() > 0
    assert counts.mean() == 12
    assert counts.std() == pytest.approx((60 * 0.2 * 0.8) ** 0.5, rel=0.3)
