"""The power law against scipy's curve_fit, subsets against their definition, and promises against more labels."""

import numpy as np
import pytest
from scipy.optimize import curve_fit
from sklearn.linear_model import Ridge

from vcc_infuse import UserError
from vcc_infuse.pool_audit import curve as module
from vcc_infuse.pool_audit import learning_curve


def blobs(per_class, classes=5, width=60, seed=0):
    rng = np.random.default_rng(7)
    centers = rng.normal(size=(classes, width))
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(classes), per_class)
    return centers[y] + 2.5 * rng.normal(size=(len(y), width)), y


@pytest.mark.parametrize(("floor", "factor", "exponent"), [(0.1, 0.8, 0.5), (0.0, 0.6, 0.3), (0.05, 1.0, 1.0)])
def test_a_power_law_is_found_again(floor, factor, exponent):
    sizes = np.array([5, 10, 20, 40, 80])
    errors = floor + factor * sizes**-exponent
    np.testing.assert_allclose(module._fit(sizes, errors, module._weights(sizes)), [floor, factor, exponent], atol=1e-6)


def test_the_fit_is_that_of_scipy():
    rng = np.random.default_rng(0)
    sizes = np.array([5.0, 7, 10, 14, 20, 28, 40])
    for _ in range(20):
        errors = 0.1 + 0.7 * sizes**-0.6 + 0.01 * rng.normal(size=7)
        weights = module._weights(sizes)
        ours = module._fit(sizes, errors, weights)
        bounds = ([0, 0, 0.1], [1, np.inf, 1.5])
        law = lambda n, a, b, c: a + b * n**-c  # noqa: E731
        scipy, _ = curve_fit(law, sizes, errors, p0=(0.1, 0.5, 0.5), sigma=weights**-0.5, bounds=bounds)
        loss = [np.square(law(sizes, *fitted) - errors) @ weights for fitted in (ours, scipy)]
        assert loss[0] <= loss[1] * 1.05 + 1e-9  # exponents are on a grid


def test_a_flat_or_rising_curve_stays_flat():
    sizes = np.array([5, 10, 20, 40])
    floor, factor, _ = module._fit(sizes, np.array([0.3, 0.31, 0.32, 0.33]), module._weights(sizes))
    assert factor == 0
    assert 0.3 < floor < 0.33


def test_subsets_keep_shares_and_leave_one_of_each_class():
    counts = np.array([20, 10, 2, 1, 0])
    plans = module._subset_counts(counts)
    sizes = [int(plan.sum()) for plan in plans]
    assert sizes == sorted(set(sizes))
    for plan in plans:
        assert (plan[:4] >= 1).all()
        assert plan[4] == 0
        assert (plan[:3] < counts[:3]).all()
    assert abs(plans[-1][0] / plans[-1][1] - 2) < 0.5


def test_subsets_are_measured_on_the_other_labels():
    x, y = blobs(8)
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    counts = np.array([2, 2, 3, 2, 1])
    wrong = module._wrong_on_subsets(x, y, counts, 1.0, 3, np.random.default_rng(1))
    for row in wrong:
        inside = np.flatnonzero(np.isnan(row))
        outside = np.flatnonzero(~np.isnan(row))
        np.testing.assert_array_equal(np.bincount(y[inside]), counts)
        fitted = Ridge(alpha=1.0).fit(x[inside], np.eye(5)[y[inside]])
        np.testing.assert_array_equal(row[outside], fitted.predict(x[outside]).argmax(1) != y[outside])
    assert len({tuple(np.isnan(row)) for row in wrong}) == 3


def test_the_interval_for_twice_the_labels_holds():
    held = []
    test_x, test_y = blobs(400, seed=99)
    for seed in range(12):
        x, y = blobs(40, seed=seed)
        first = np.arange(200) % 40 < 20
        curve = learning_curve(x[first], y[first], seed=seed, draws=60)
        unit = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (x, test_x)]
        error = (Ridge(alpha=1.0).fit(unit[0], np.eye(5)[y]).predict(unit[1]).argmax(1) != test_y).mean()
        held.append(curve.at_double.low <= error <= curve.at_double.high)
        assert curve.note == ""
        assert curve.sizes[-1] == 80
        assert curve.error_at(100) == pytest.approx(curve.now.value)
        assert curve.errors[0] > curve.errors[-1]
        assert curve.error_at(200) == pytest.approx(curve.at_double.value)
        expected = 100 * (2 ** (1 / curve.exponent) - 1)
        assert curve.more_for_half.value == pytest.approx(expected)
    assert np.mean(held) >= 0.75


@pytest.mark.parametrize("per_class", [1, 2])
def test_too_few_labels_get_a_note_instead_of_a_promise(per_class):
    x, y = blobs(per_class)
    curve = learning_curve(x, y)
    assert curve.note == f"{5 * per_class} labels are too few to continue a curve; it needs about four per class"
    assert np.isnan(curve.at_double.value)


def test_uneven_classes_and_copies():
    x, y = blobs(12)
    kept = np.r_[0:40, 48]  # one label of the last class
    assert learning_curve(x[kept], y[kept], draws=10).note == ""
    copies = learning_curve(np.ones((40, 3)), np.arange(40) % 2, draws=10)
    assert 0.3 < copies.errors[-1] < 0.7


@pytest.mark.parametrize(
    ("features", "labels", "message"),
    [
        (np.eye(3), [0, 0, 0], "labels must hold at least two classes, got one"),
        (np.eye(3) * np.nan, [0, 1, 0], "features must be finite"),
        (np.eye(3), [0, 1], "labels must have one entry per row"),
        (np.ones((0, 3)), [], "features must hold at least one row"),
    ],
)
def test_mistakes_cost_one_line(features, labels, message):
    with pytest.raises(UserError, match=message):
        learning_curve(features, labels)


@pytest.mark.parametrize(("per_class", "repeats"), [(10, 20), (80, 20), (160, 10), (350, 5)])
def test_a_run_draws_fewer_subsets_of_many_labels(monkeypatch, per_class, repeats):
    asked = []
    monkeypatch.setattr(module, "learning_curve", lambda *_, repeats, classes: asked.append(repeats) or learning_curve(
        *blobs(10), repeats=2, classes=classes))  # fmt: skip
    x, y = blobs(per_class)
    found = module.curve_in_passing(x, y, 5)
    assert asked == [repeats]
    assert found["labels"] == 5 * per_class


def test_what_a_run_says_is_the_curve_of_the_audit():
    x, y = blobs(12)
    found = module.curve_in_passing(x, y, 5)
    curve = learning_curve(x, y, classes=5)
    assert found["sizes"] == curve.sizes.tolist()
    assert found["at_double"] == {
        "value": curve.at_double.value,
        "low": curve.at_double.low,
        "high": curve.at_double.high,
    }
    assert found["text"] == curve.describe()
    assert f"with twice the labels {curve.at_double.value:.1%} (" in found["text"]
    assert 0 < found["seconds"] < 60
    assert found["factor"] == curve.factor


@pytest.mark.parametrize(
    ("labels", "why"),
    [
        (np.arange(5).repeat(2), "10 labels are too few to continue a curve"),
        (np.zeros(9, int), "label a second class"),
        (np.arange(5).repeat(500), "2,500 labels are too many to estimate in passing"),
    ],
)
def test_what_cannot_be_said_has_a_reason_and_no_figures(labels, why):
    x = np.random.default_rng(0).normal(size=(len(labels), 4))
    found = module.curve_in_passing(x, labels, 5)
    assert why in found["text"]
    assert not {"sizes", "now", "at_double"} & set(found)
