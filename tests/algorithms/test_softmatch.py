import math
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.tiny import (
    buffers,
    judged,
    make_step,
    missing_gradients,
    part_of,
    random_probs,
    run,
    same,
    two_processes,
)
from vcc_infuse.algorithms.softmatch import SoftMatch
from vcc_infuse.errors import UserError
from vcc_infuse.types import Calibrated


def slow_weights(confidence, mean, variance):
    return [1.0 if m >= mean else math.exp(-((m - mean) ** 2) / (2 * variance / 4)) for m in confidence]


def test_running_gaussian_without_alignment():
    torch.manual_seed(0)
    method = SoftMatch(align=False, momentum=0.9)
    step = make_step(method)
    mean, variance = 1 / 3, 1.0
    for _ in range(15):
        probs = random_probs(8)
        confidence = probs.amax(1).tolist()
        mean = 0.9 * mean + 0.1 * statistics.mean(confidence)
        variance = 0.9 * variance + 0.1 * statistics.variance(confidence)
        pseudo = judged(method, step, probs)
        torch.testing.assert_close(pseudo.weights, torch.tensor(slow_weights(confidence, mean, variance)))
        assert torch.equal(pseudo.targets, probs.argmax(1))
    assert 0 < pseudo.weights.min() < 0.9


def test_alignment_moves_the_weights_and_not_the_labels():
    method = SoftMatch(momentum=0.5)
    step = make_step(method)
    probs = torch.tensor([[0.5, 0.4, 0.1], [0.8, 0.1, 0.1], [0.6, 0.3, 0.1], [0.7, 0.1, 0.2]])
    pseudo = judged(method, step, probs)
    mean = [statistics.mean(column) for column in zip(*probs.tolist(), strict=True)]
    confidence = []
    for row in probs.tolist():
        scaled = [p * (1 / 3 + 1e-6) / (m + 1e-6) for p, m in zip(row, mean, strict=True)]
        confidence.append(max(scaled) / sum(scaled))
    level = 0.5 / 3 + 0.5 * statistics.mean(confidence)
    variance = 0.5 + 0.5 * statistics.variance(confidence)
    torch.testing.assert_close(pseudo.weights, torch.tensor(slow_weights(confidence, level, variance)))
    assert pseudo.targets.tolist() == [0, 0, 0, 0]


def test_per_class_statistics():
    """The mode that other libraries ship broken: a mean and a variance for each predicted class."""
    method = SoftMatch(align=False, per_class=True, momentum=0.9)
    step = make_step(method)
    conf = {0: [0.5, 0.7, 0.9], 1: [0.6], 2: []}
    rows = [[c if k == label else (1 - c) / 2 for k in range(3)] for label, cs in conf.items() for c in cs]
    pseudo = judged(method, step, torch.tensor(rows))
    means = [0.9 / 3 + 0.1 * 0.7, 0.9 / 3 + 0.1 * 0.6, 1 / 3]
    variances = [0.9 + 0.1 * 0.04, 1.0, 1.0]
    torch.testing.assert_close(method.mean, torch.tensor(means))
    torch.testing.assert_close(method.variance, torch.tensor(variances))
    expected = [w for c in range(3) for w in slow_weights(conf[c], means[c], variances[c])]
    torch.testing.assert_close(pseudo.weights, torch.tensor(expected))


def test_a_class_below_its_own_mean_is_judged_by_its_own_gaussian():
    method = SoftMatch(align=False, per_class=True).eval()
    step = make_step(method)
    method.eval()
    method.mean.copy_(torch.tensor([0.9, 0.4, 0.4]))
    method.variance.copy_(torch.tensor([0.01, 0.01, 0.01]))
    pseudo = judged(method, step, torch.tensor([[0.6, 0.2, 0.2], [0.2, 0.6, 0.2]]))
    torch.testing.assert_close(pseudo.weights, torch.tensor([math.exp(-(0.3**2) / (2 * 0.01 / 4)), 1.0]))


def test_confidence_of_the_calibrator_is_judged_where_nothing_is_aligned():
    method = SoftMatch(align=False)
    step = make_step(method)
    method.eval()
    method.mean.fill_(0.8)
    method.variance.fill_(0.04)
    pseudo = method.pseudo_label(Calibrated(random_probs(2), torch.tensor([0.9, 0.6])), step)
    torch.testing.assert_close(pseudo.weights, torch.tensor([1.0, math.exp(-(0.2**2) / (2 * 0.04 / 4))]))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.booleans(), st.booleans(), st.integers(1, 9))
def test_weights_lie_between_zero_and_one_and_follow_the_batch(seed, align, per_class, rows):
    results = []
    torch.manual_seed(seed)
    probs, order = random_probs(rows, scale=6), torch.randperm(rows)
    for chosen in (probs, probs[order]):
        method = SoftMatch(align=align, per_class=per_class, momentum=0.5)
        step = make_step(method)
        results.append(judged(method, step, chosen).weights)
    assert ((results[0] >= 0) & (results[0] <= 1)).all()
    torch.testing.assert_close(results[0][order], results[1])


def test_eval_mode_changes_no_buffer_and_state_survives():
    one, other = SoftMatch(), SoftMatch()
    step = make_step(one)
    make_step(other)
    judged(one, step, random_probs(8))
    other.load_state_dict(one.state_dict())
    other.eval()
    before = buffers(other)
    judged(other, step, random_probs(8))
    assert same(before, buffers(other))


@pytest.mark.parametrize("per_class", [False, True])
def test_two_processes_share_their_statistics(per_class):
    probs = random_probs(8)
    methods = [SoftMatch(momentum=0.5, per_class=per_class) for _ in range(3)]
    steps = [make_step(method) for method in methods]
    whole = judged(methods[2], steps[2], probs)

    def work(rank, gather):
        return judged(methods[rank], part_of(steps[rank], rank, gather), probs[rank::2])

    for rank, pseudo in enumerate(two_processes(work)):
        torch.testing.assert_close(pseudo.weights, whole.weights[rank::2])
        for name, value in buffers(methods[2]).items():
            torch.testing.assert_close(methods[rank].state_dict()[name], value)


def test_finite_gradients_under_autocast():
    method = SoftMatch()
    step = make_step(method)
    with torch.autocast("cpu", torch.bfloat16):
        terms = run(method, step)
    assert missing_gradients(terms, step.model) == []


@pytest.mark.parametrize("wrong", [{"sigmas": 0}, {"momentum": 2}, {"weight": -1}])
def test_wrong_options_are_named(wrong):
    with pytest.raises(UserError, match=next(iter(wrong))):
        SoftMatch(**wrong)
