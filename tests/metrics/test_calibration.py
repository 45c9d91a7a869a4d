import math
from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from netcal.metrics import ACE, ECE, MCE
from torchmetrics.functional.classification import multiclass_calibration_error

from vcc_infuse import metrics
from vcc_infuse.errors import UserError


def draw(seed, size=500, classes=5, sharp=2.0):
    """Probabilities, truth, confidence and correctness of an imperfect classifier."""
    rng = np.random.default_rng(seed)
    y = rng.integers(classes, size=size)
    logits = sharp * (rng.normal(size=(size, classes)) + np.eye(classes)[y])
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return probs, y, probs.max(1), probs.argmax(1) == y


def slow_table(confidence, correct, bins, closed):
    """(count, accuracy, confidence) of every bin that is not empty, one comparison at a time."""
    rows = []
    for b in range(bins):
        lo, hi = b / bins, (b + 1) / bins
        members = []
        for c, r in zip(confidence, correct, strict=True):
            left = lo <= c < hi or (b == bins - 1 and c == 1)
            right = lo < c <= hi or (b == 0 and c == 0)
            if left if closed == "left" else right:
                members.append((c, r))
        if members:
            c, r = zip(*members, strict=True)
            rows.append((len(c), sum(r) / len(r), sum(c) / len(c)))
    return rows


@pytest.mark.parametrize("bins", [1, 7, 10, 15, 100])
@pytest.mark.parametrize("seed", [0, 1])
def test_agrees_with_netcal(bins, seed):
    _, _, confidence, correct = draw(seed)
    confidence[:5] = 1.0
    for ours, theirs in ((metrics.ece, ECE), (metrics.mce, MCE), (metrics.average_ce, ACE)):
        expected = theirs(bins).measure(confidence, correct)
        assert ours(confidence, correct, bins) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("bins", [5, 15])
@pytest.mark.parametrize("ours", [("ece", "l1"), ("mce", "max")])
def test_agrees_with_torchmetrics(bins, ours):
    probs, y, confidence, correct = draw(2)
    name, norm = ours
    theirs = multiclass_calibration_error(torch.tensor(probs), torch.tensor(y), 5, bins, norm)
    assert getattr(metrics, name)(confidence, correct, bins) == pytest.approx(float(theirs), abs=2e-6)


def test_certain_predictions_share_the_last_bin():
    """torchmetrics gives confidence 1.0 a bin of its own; nudged below 1 it must agree with us."""
    probs, y, _, _ = draw(3, sharp=8.0)
    probs[:40] = np.eye(5)[np.arange(40) % 5]
    confidence, correct = probs.max(1), probs.argmax(1) == y
    nudged = torch.tensor(np.minimum(probs, 1 - 1e-6))
    for norm, name in (("l1", "ece"), ("max", "mce")):
        theirs = float(multiclass_calibration_error(nudged, torch.tensor(y), 5, 15, norm))
        assert getattr(metrics, name)(confidence, correct) == pytest.approx(theirs, abs=5e-6)


@pytest.mark.parametrize("closed", ["left", "right"])
@pytest.mark.parametrize("bins", [1, 10, 15])
def test_agrees_with_a_slow_loop_on_the_edges(closed, bins):
    rng = np.random.default_rng(4)
    confidence = np.concatenate([np.arange(bins + 1) / bins, rng.random(60)])
    correct = rng.random(len(confidence)) < confidence
    rows = slow_table(confidence, correct, bins, closed)
    gaps = [abs(a - c) for _, a, c in rows]
    weighted = sum(n * g for (n, _, _), g in zip(rows, gaps, strict=True)) / len(confidence)
    assert metrics.ece(confidence, correct, bins, closed=closed) == pytest.approx(weighted)
    assert metrics.mce(confidence, correct, bins, closed=closed) == pytest.approx(max(gaps))
    assert metrics.average_ce(confidence, correct, bins, closed=closed) == pytest.approx(sum(gaps) / len(gaps))


def test_sides_of_an_edge():
    left = metrics.reliability([0.0, 0.5, 1.0], [0, 1, 1], 2)
    right = metrics.reliability([0.0, 0.5, 1.0], [0, 1, 1], 2, closed="right")
    assert left.count.tolist() == [1, 2]
    assert right.count.tolist() == [2, 1]
    assert metrics.reliability([0.3, 0.6, 0.7], [1, 1, 1], 10).count.nonzero().flatten().tolist() == [3, 6, 7]


def test_explicit_edges_and_empty_bins():
    table = metrics.reliability([0.1, 0.2, 0.95], [0, 1, 1], bins=[0, 0.5, 0.9, 1])
    assert table.count.tolist() == [2, 0, 1]
    assert table.accuracy.tolist()[::2] == [0.5, 1.0]
    assert table.accuracy.isnan().tolist() == [False, True, False]
    assert table.edges.tolist() == [0, 0.5, 0.9, 1]
    assert metrics.average_ce([0.1, 0.2, 0.95], [0, 1, 1], [0, 0.5, 0.9, 1]) == pytest.approx(0.2)


@pytest.mark.parametrize(("size", "bins"), [(500, 15), (100, 7), (5, 15), (1, 3)])
def test_equal_mass_is_an_array_split(size, bins):
    _, _, confidence, correct = draw(5, size)
    order = np.argsort(confidence)
    parts = [p for p in np.array_split(order, bins) if len(p)]
    gaps = [abs(correct[p].mean() - confidence[p].mean()) for p in parts]
    expected = sum(len(p) * g for p, g in zip(parts, gaps, strict=True)) / size
    table = metrics.reliability(confidence, correct, bins, edges="mass")
    assert metrics.ace(confidence, correct, bins) == pytest.approx(expected)
    assert table.count.tolist() == [len(p) for p in np.array_split(order, bins)]
    assert table.edges[0] == confidence.min()
    assert table.edges[-1] == confidence.max()


def test_ties_across_equal_mass_bins_average_over_all_orders():
    confidence, correct = np.array([0.5, 0.8, 0.8, 0.8, 0.8, 0.9]), np.array([1, 1, 0, 0, 1, 0])
    means = []
    for order in permutations(range(1, 5)):
        arranged = correct[[0, *order, 5]]
        means.append([part.mean() for part in np.array_split(arranged, 3)])
    table = metrics.reliability(confidence, correct, 3, edges="mass")
    np.testing.assert_allclose(table.accuracy, np.mean(means, 0))
    # A calibrated classifier of one confidence must not look uncalibrated.
    assert metrics.ace(np.full(100, 0.9), np.arange(100) < 90) == pytest.approx(0, abs=1e-12)


def test_classwise_errors_against_loops():
    probs, y, _, _ = draw(6, 300, 4)
    adaptive, static = [], []
    for k in range(4):
        order = np.argsort(probs[:, k])
        parts = np.array_split(order, 15)
        adaptive += [abs((y[p] == k).mean() - probs[p, k].mean()) for p in parts]
        rows = slow_table(probs[:, k], y == k, 15, "left")
        static.append(sum(n * abs(a - c) for n, a, c in rows) / 300)
    assert metrics.ace_classwise(probs, y) == pytest.approx(np.mean(adaptive))
    assert metrics.classwise_ece(probs, y) == pytest.approx(np.mean(static))


def test_paper_preset():
    confidence, correct = [0.1, 0.15, 0.2, 0.95, 1.0], [1, 0, 0, 1, 0]
    rows = slow_table(confidence, correct, 10, "right")
    gaps = [abs(a - c) for _, a, c in rows]
    preset = metrics.paper_preset(confidence, correct)
    assert preset["ace"] == pytest.approx(sum(gaps) / len(gaps))
    assert preset["mce"] == pytest.approx(max(gaps))
    assert preset["ece"] == pytest.approx(sum(n * abs(a - c) for n, a, c in rows) / 5)
    assert preset["ace"] != pytest.approx(metrics.average_ce(confidence, correct, 10))


def test_min_count_leaves_out_bins_with_few_examples():
    confidence, correct = [0.1] + [0.9] * 10, [1] + [1] * 10
    assert metrics.mce(confidence, correct) == pytest.approx(0.9)
    assert metrics.mce(confidence, correct, min_count=2) == pytest.approx(0.1)
    with pytest.raises(UserError, match=r"min_count must be at most 10.*got 20"):
        metrics.mce(confidence, correct, min_count=20)


def test_every_kind_of_input_gives_the_same_float():
    confidence, correct = [0.25, 0.5, 0.75], [True, False, True]
    expected = metrics.ece(confidence, correct)
    assert type(expected) is float
    grad = torch.tensor(confidence, requires_grad=True)
    assert metrics.ece(grad, torch.tensor(correct)) == expected
    assert metrics.ece(grad.detach().bfloat16(), [1, 0, 1]) == expected
    assert metrics.ece(np.array(confidence)[::-1], np.array(correct, dtype=np.uint8)[::-1]) == expected


def test_float64_accumulation():
    """A million equal values: float32 sums would be off by much more."""
    confidence = torch.full((1_000_000,), 0.7, dtype=torch.float32)
    expected = 1 - float(np.float32(0.7))
    assert metrics.ece(confidence, torch.ones(1_000_000)) == pytest.approx(expected, abs=1e-11)


VALUES = st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=60)


@settings(max_examples=60, deadline=None)
@given(VALUES, st.integers(1, 30), st.sampled_from(["left", "right"]), st.randoms())
def test_bounds_and_permutation(pairs, bins, closed, random):
    confidence, correct = zip(*pairs, strict=True)
    first = metrics.ece(confidence, correct, bins, closed=closed), metrics.ace(confidence, correct, bins)
    worst = metrics.mce(confidence, correct, bins, closed=closed)
    assert 0 <= first[0] <= worst + 1e-12 <= 1 + 1e-9
    assert metrics.average_ce(confidence, correct, bins, closed=closed) <= worst + 1e-12
    assert 0 <= first[1] <= 1
    assert metrics.reliability(confidence, correct, bins, closed=closed).count.sum() == len(pairs)
    random.shuffle(pairs)
    confidence, correct = zip(*pairs, strict=True)
    again = metrics.ece(confidence, correct, bins, closed=closed), metrics.ace(confidence, correct, bins)
    assert again == pytest.approx(first, abs=1e-12)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=60), st.integers(1, 20))
def test_overconfident_everywhere(confidence, bins):
    """With nothing right every bin is overconfident, and all weighted errors are the mean gap."""
    wrong = [False] * len(confidence)
    mean = math.fsum(confidence) / len(confidence)
    assert metrics.ece(confidence, wrong, bins) == pytest.approx(mean)
    assert metrics.ace(confidence, wrong, bins) == pytest.approx(mean)


def test_overconfident_with_some_right():
    rng = np.random.default_rng(7)
    confidence = rng.uniform(0.5, 1, 4000)
    correct = rng.random(4000) < confidence - 0.4
    gap = confidence.mean() - correct.mean()
    for bins in (3, 10, 15):
        assert metrics.ece(confidence, correct, bins) == pytest.approx(gap)
        assert metrics.ace(confidence, correct, bins) == pytest.approx(gap)


@pytest.mark.parametrize(
    ("args", "options", "message"),
    [
        (([], []), {}, "confidence must not be empty"),
        (([0.5, float("nan")], [1, 1]), {}, "NaN, got 1 of them"),
        (([0.5, 1.2], [1, 1]), {}, r"in \[0, 1\], got values in \[0\.5, 1\.2\]"),
        (([-0.1], [1]), {}, "confidence"),
        (([0.5], [1, 0]), {}, "confidence has 1, correct has 2"),
        (([[0.5]], [1]), {}, r"shape \(1, 1\)"),
        (([0.5], [2]), {}, "correct must"),
        ((["a"], [1]), {}, "confidence must hold numbers"),
        (([0.5], [1]), {"bins": 0}, "bins must be an integer of at least 1, got 0"),
        (([0.5], [1]), {"bins": [0.5]}, "increasing"),
        (([0.5], [1]), {"bins": [0, 0, 1]}, "increasing"),
        (([0.5], [1]), {"bins": [0.6, 1]}, "widen"),
        (([0.5], [1]), {"closed": "both"}, "closed must be one of left, right, got 'both'"),
        (([0.5], [1]), {"edges": "log"}, "edges must be one of width, mass, got 'log'"),
        (([0.5], [1]), {"edges": "mass", "bins": [0, 1]}, "bins must be an integer"),
        (([0.5], [1]), {"edges": "mass", "bins": 0}, "bins must be an integer of at least 1, got 0"),
    ],
)
def test_errors_are_one_line(args, options, message):
    with pytest.raises(UserError, match=message) as caught:
        metrics.reliability(*args, **options)
    assert "\n" not in str(caught.value)


def test_rounding_above_one_is_clamped():
    assert metrics.reliability([1 + 1e-7], [1]).confidence[-1] == 1
