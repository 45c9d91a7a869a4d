import math

import numpy as np
import pytest
from scipy import stats

from paper.collect import estimate, paired


def test_interval_is_students_t() -> None:
    values = [24.1, 25.3, 22.8, 26.0]
    found = estimate(values)
    assert found is not None
    low, high = stats.t.interval(0.95, len(values) - 1, loc=np.mean(values), scale=stats.sem(values))
    assert (found.low, found.high) == pytest.approx((low, high))
    assert found.std == pytest.approx(np.std(values, ddof=1))
    assert found.seeds == 4
    assert found.median == pytest.approx(24.7)


def test_one_value_has_no_spread() -> None:
    found = estimate([3.0])
    assert found is not None
    assert found.mean == 3.0
    assert math.isnan(found.std)
    assert math.isnan(found.low)
    assert estimate([]) is None


def test_differences_are_taken_on_shared_seeds_only() -> None:
    ours, base = {0: 5.0, 1: 7.0, 2: 100.0}, {1: 6.0, 0: 6.0, 5: 0.0}
    found = paired(ours, base)
    assert found is not None
    assert found.mean == pytest.approx(0.0)  # (5 − 6 + 7 − 6) / 2
    assert found.seeds == 2
    assert paired(ours, {9: 1.0}) is None


def test_the_interval_of_a_difference_is_that_of_the_paired_test() -> None:
    """SciPy's paired t-test is the oracle."""
    rng = np.random.default_rng(0)
    ours, base = ({seed: float(value) for seed, value in enumerate(rng.normal(20, 2, 10))} for _ in range(2))
    found = paired(ours, base)
    assert found is not None
    test = stats.ttest_rel(list(ours.values()), list(base.values())).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((test.low, test.high))
