import math

import numpy as np
import pytest
from sklearn.metrics import precision_score

from vcc_infuse import metrics
from vcc_infuse.errors import UserError


def test_agrees_with_a_calculation_by_hand():
    quality = metrics.pseudo_label_quality([0, 1, 1, 2], [1.0, 0.5, 0.0, 1.0], [0, 2, 1, -1])
    assert quality.coverage == pytest.approx(2.5 / 4)
    assert quality.precision == pytest.approx(1 / 1.5)


def test_precision_is_nan_without_known_truth():
    assert metrics.pseudo_label_quality([0, 1], [0, 0], [0, 1]).coverage == 0
    assert math.isnan(metrics.pseudo_label_quality([0, 1], [0, 0], [0, 1]).precision)
    assert math.isnan(metrics.pseudo_label_quality([0, 1], [1, 1], [-1, -1]).precision)


def test_per_class_against_a_loop_and_scikit_learn():
    rng = np.random.default_rng(0)
    labels, truth, weights = rng.integers(4, size=200), rng.integers(-1, 5, size=200), rng.random(200)
    weights[rng.random(200) < 0.4] = 0
    table = metrics.pseudo_label_quality_per_class(labels, weights, truth, 6)
    for k in range(4):
        mine = labels == k
        assert table.count[k] == mine.sum()
        assert float(table.coverage[k]) == pytest.approx(weights[mine].mean())
    known = truth >= 0
    expected = precision_score(truth[known], labels[known], labels=range(4), average=None, sample_weight=weights[known])
    np.testing.assert_allclose(table.precision[:4], expected)
    assert table.count[4:].tolist() == [0, 0]
    assert table.coverage[4:].isnan().all()
    assert table.precision[4:].isnan().all()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (([0], [-1.0], [0]), "weights must"),
        (([0], [math.inf], [0]), "weights must"),
        (([0], [1, 1], [0]), "weights has 2"),
        (([0], [1], [-2]), "truth must hold classes of at least -1, got -2"),
        (([-1], [1], [0]), "labels must hold classes of at least 0, got -1"),
    ],
)
def test_errors_are_one_line(args, message):
    with pytest.raises(UserError, match=message) as caught:
        metrics.pseudo_label_quality(*args)
    assert "\n" not in str(caught.value)
