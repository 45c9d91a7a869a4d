import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.tiny import (
    make_step,
    pseudo_labels,
    random_probs,
    run,
)
from vcc_infuse.algorithms.freematch import FreeMatch
from vcc_infuse.errors import UserError
from vcc_infuse.types import Calibrated


def test_thresholds_follow_a_slow_loop():
    torch.manual_seed(0)
    method = FreeMatch(momentum=0.9)
    step = make_step(method, steps=10**6)
    level, probs_, hist = 1 / 3, [1 / 3] * 3, [1 / 3] * 3
    seen = set()
    for _ in range(12):
        batch = random_probs(8)
        rows = batch.tolist()
        labels = [row.index(max(row)) for row in rows]
        level = 0.9 * level + 0.1 * sum(max(row) for row in rows) / 8
        probs_ = [0.9 * p + 0.1 * sum(row[c] for row in rows) / 8 for c, p in enumerate(probs_)]
        hist = [0.9 * h + 0.1 * labels.count(c) / 8 for c, h in enumerate(hist)]
        pseudo = pseudo_labels(method, step, batch)
        taus = [level * p / max(probs_) for p in probs_]
        torch.testing.assert_close(method.class_thresholds(), torch.tensor(taus))
        torch.testing.assert_close(method.histogram, torch.tensor(hist))
        assert pseudo.weights.tolist() == [float(max(row) >= taus[c]) for row, c in zip(rows, labels, strict=True)]
        assert pseudo.targets.tolist() == labels
        seen |= set(pseudo.weights.tolist())
    assert seen == {0.0, 1.0}


def test_bounds_of_the_thresholds():
    method = FreeMatch(min_threshold=0.9, max_threshold=0.95)
    step = make_step(method, steps=10**6)
    method.eval()
    method.global_threshold.fill_(0.99)
    method.probs.copy_(torch.tensor([0.6, 0.56, 0.1]))
    torch.testing.assert_close(method.class_thresholds(), torch.tensor([0.95, 0.99 * 0.56 / 0.6, 0.9]))
    assert pseudo_labels(method, step, torch.tensor([[0.05, 0.01, 0.94]])).weights.tolist() == [1]


def slow_fairness(method, logits, weights):
    chosen = [row for row, w in zip(logits.softmax(1).tolist(), weights.tolist(), strict=True) if w]
    labels = [row.index(max(row)) for row in chosen]
    mean = [sum(column) / len(chosen) for column in zip(*chosen, strict=True)]
    hist = [labels.count(c) / len(labels) for c in range(3)]
    expected = [p / h for p, h in zip(method.probs.tolist(), method.histogram.tolist(), strict=True)]
    selected = [p / h if h else 0.0 for p, h in zip(mean, hist, strict=True)]
    return sum(e / sum(expected) * math.log(s / sum(selected) + 1e-12) for e, s in zip(expected, selected, strict=True))


@pytest.mark.parametrize("weights", [[1, 1, 1, 1], [1, 0, 1, 0], [0, 0, 0, 1]])
def test_fairness_against_a_slow_loop(weights):
    """The last case leaves two classes without a prediction."""
    method = FreeMatch()
    make_step(method, steps=10**6)
    method.probs.copy_(torch.tensor([0.5, 0.3, 0.2]))
    method.histogram.copy_(torch.tensor([0.6, 0.3, 0.1]))
    logits = torch.tensor([[2.0, 0, 0], [0, 1.0, 0], [0, 0.5, 1.5], [1.0, 0.2, 0]])
    weights = torch.tensor(weights).float()
    got = method._unfairness(logits, weights)
    assert got.item() == pytest.approx(slow_fairness(method, logits, weights), rel=1e-4)


def test_without_selected_examples_the_fairness_term_and_its_gradient_are_zero():
    method = FreeMatch()
    make_step(method, steps=10**6)
    logits = torch.randn(4, 3, requires_grad=True)
    loss = method._unfairness(logits, torch.zeros(4))
    loss.backward()
    assert loss.item() == 0
    assert logits.grad.abs().max() == 0


def test_fairness_enters_with_its_factor():
    method = FreeMatch(fairness=0.5)
    step = make_step(method, steps=10**6)
    step.model.eval()
    method.eval()
    method.global_threshold.fill_(0.38)
    terms = run(method, step)
    assert 0 < terms.pseudo.weights.sum() < 8
    strong = step.model(step.batch.views["strong"]).logits
    expected = 0.5 * slow_fairness(method, strong, terms.pseudo.weights)
    assert terms["fairness"].item() == pytest.approx(expected, rel=1e-4)


def test_the_confidence_of_the_calibrator_is_used():
    method = FreeMatch()
    step = make_step(method, steps=10**6)
    method.eval()
    method.global_threshold.fill_(0.8)
    pseudo = method.pseudo_label(Calibrated(random_probs(2), torch.tensor([0.9, 0.7])), step)
    assert pseudo.weights.tolist() == [1, 0]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 9))
def test_thresholds_stay_in_bounds_and_weights_follow_the_batch(seed, rows):
    torch.manual_seed(seed)
    probs, order, results = random_probs(rows, scale=6), torch.randperm(rows), []
    for chosen in (probs, probs[order]):
        method = FreeMatch(momentum=0.3)
        step = make_step(method, steps=10**6)
        results.append(pseudo_labels(method, step, chosen).weights)
        assert ((method.class_thresholds() >= 0) & (method.class_thresholds() <= 1)).all()
    # Rounding of the mean may move the threshold past a confidence that equals it.
    assert (results[0][order] != results[1]).sum() <= 1


def test_an_upper_bound_below_the_lower_one_is_refused():
    with pytest.raises(UserError, match=r"max_threshold must be a number in \[0.9, 1\], got 0.5"):
        FreeMatch(min_threshold=0.9, max_threshold=0.5)


def test_in_a_short_run_the_threshold_reaches_the_confidence():
    """With the momentum of a long run it would come less than half of the way in 600 steps."""
    method = FreeMatch()
    step = make_step(method, steps=600)
    probs = torch.tensor([[0.98, 0.01, 0.01], [0.01, 0.98, 0.01], [0.01, 0.01, 0.98]])
    for _ in range(60):  # a tenth of the run
        pseudo_labels(method, step, probs)
    assert float(method.global_threshold) == pytest.approx(0.98 - (0.98 - 1 / 3) * (1 - 20 / 600) ** 60)
    assert make_step(FreeMatch(), steps=10**6).momentum(0.999) == 0.999
    assert make_step(FreeMatch(), steps=4).momentum(0.999) == 0
