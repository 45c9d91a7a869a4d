"""EM against a slow loop, the confusion against scipy's general optimizer, and shares that were simulated."""

import numpy as np
import pytest
from scipy.optimize import minimize

from vcc_infuse import UserError
from vcc_infuse.pool_audit import estimate_shares, shares_by_confusion, shares_by_em

CENTERS = np.array([[2.0, 0, 0], [0, 2.0, 0], [0, 0, 2.0]])


def world(counts, seed):
    """Rows of three Gaussian classes, their classes, and the true probabilities under equal shares."""
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(3), counts)
    x = CENTERS[y] + rng.normal(size=(len(y), 3))
    likelihood = np.exp(-0.5 * np.square(x[:, None] - CENTERS).sum(2))  # what a perfect model of equal shares sees
    return likelihood / likelihood.sum(1, keepdims=True), y


def slow_em(probs, prior, rounds=3000):
    shares = list(prior)
    for _ in range(rounds):
        sums = [0.0] * len(shares)
        for row in probs:
            joint = [p * s / q for p, s, q in zip(row, shares, prior, strict=True)]
            for k, value in enumerate(joint):
                sums[k] += value / sum(joint)
        shares = [value / len(probs) for value in sums]
    return shares


def test_em_is_that_of_a_slow_loop():
    probs, _ = world((30, 8, 2), 0)
    prior = np.array([0.5, 0.3, 0.2])
    np.testing.assert_allclose(shares_by_em(probs, prior), slow_em(probs, prior), atol=1e-3)


def test_the_confusion_is_solved_on_the_simplex():
    probs, y = world((12, 12, 12), 1)
    pool, _ = world((200, 15, 0), 2)
    confusion = np.array([probs[y == k].mean(0) for k in range(3)])
    oracle = minimize(
        lambda w: np.square(w @ confusion - pool.mean(0)).sum(), np.full(3, 1 / 3), bounds=[(0, 1)] * 3,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1}, options={"ftol": 1e-14},
    )  # fmt: skip
    np.testing.assert_allclose(shares_by_confusion(pool, probs, y), oracle.x, atol=1e-3)


@pytest.mark.parametrize("method", ["em", "confusion"])
@pytest.mark.parametrize("counts", [(1000, 300, 100), (100, 300, 1000), (400, 400, 400)])
def test_simulated_shares_are_found(method, counts):
    pool, _ = world(counts, 3)
    probs, y = world((500, 500, 500), 4)
    truth = np.array(counts) / sum(counts)
    estimate = estimate_shares(pool, probs, y, method=method, draws=50)
    assert np.abs(estimate.shares - truth).sum() / 2 < 0.04
    assert estimate.shares.sum() == pytest.approx(1)
    assert (estimate.low <= estimate.shares).all()
    assert (estimate.shares <= estimate.high).all()
    np.testing.assert_allclose(estimate.labeled, 1 / 3)
    shifted = np.abs(truth - 1 / 3) > 0.1
    assert set(np.flatnonzero(shifted)) <= set(estimate.differ())


@pytest.mark.parametrize("method", ["em", "confusion"])
def test_intervals_hold_about_as_often_as_they_say(method):
    truth = np.array([0.6, 0.3, 0.1])
    held = []
    widths = []
    for seed in range(40):
        pool, _ = world((60, 30, 10), 2 * seed)
        probs, y = world((15, 15, 15), 2 * seed + 1)
        estimate = estimate_shares(pool, probs, y, method=method, draws=60)
        held.append((estimate.low <= truth) & (truth <= estimate.high))
        widths.append(estimate.high - estimate.low)
    assert np.mean(held) > 0.8
    assert np.mean(widths) < 0.3


def test_few_labels_and_a_class_without_any():
    pool, _ = world((20, 20, 20), 5)
    probs, y = world((2, 1, 1), 6)
    assert estimate_shares(pool, probs, y, draws=5).shares.sum() == pytest.approx(1)
    missing = estimate_shares(pool, probs[y < 2], y[y < 2], draws=5)
    assert np.isfinite(missing.shares).all()


def test_one_class_has_everything():
    estimate = estimate_shares(np.ones((4, 1)), np.ones((2, 1)), [0, 0], draws=5)
    assert estimate.shares.tolist() == [1.0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p, q, y: estimate_shares(p, q[:, :2], y), "label_probs must have 3 columns"),
        (lambda p, q, y: estimate_shares(p * 2, q, y), "pool_probs must be probabilities"),
        (lambda p, q, y: estimate_shares(p * np.nan, q, y), "pool_probs must be finite"),
        (lambda p, q, y: estimate_shares(p, q[:0], y[:0]), "label_probs must hold at least one row"),
        (lambda p, q, y: estimate_shares(p, q[y > 0], y[y > 0], method="confusion"), "none is of class 0"),
        (lambda p, q, y: estimate_shares(p, q, y, level=1), "level must be a number in"),
    ],
)
def test_mistakes_cost_one_line(call, message):
    pool, _ = world((5, 5, 5), 0)
    probs, y = world((5, 5, 5), 1)
    with pytest.raises(UserError, match=message):
        call(pool, probs, y)
