import math
import statistics

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.tiny import (
    buffers,
    make_step,
    part_of,
    pseudo_labels,
    random_probs,
    two_processes,
)
from vcc_infuse.algorithms.softmatch import SoftMatch
from vcc_infuse.types import Calibrated


def slow_weights(confidence, mean, variance):
    return [1.0 if m >= mean else math.exp(-((m - mean) ** 2) / (2 * variance / 4)) for m in confidence]


def test_running_gaussian_without_alignment():
    torch.manual_seed(0)
    method = SoftMatch(align=False, momentum=0.9)
    step = make_step(method, steps=10**6)
    mean, variance = 1 / 3, 1.0
    for _ in range(15):
        probs = random_probs(8)
        confidence = probs.amax(1).tolist()
        mean = 0.9 * mean + 0.1 * statistics.mean(confidence)
        variance = 0.9 * variance + 0.1 * statistics.variance(confidence)
        pseudo = pseudo_labels(method, step, probs)
        torch.testing.assert_close(pseudo.weights, torch.tensor(slow_weights(confidence, mean, variance)))
        assert torch.equal(pseudo.targets, probs.argmax(1))
    assert 0 < pseudo.weights.min() < 0.9


def test_alignment_changes_the_weights_and_not_the_labels():
    method = SoftMatch(momentum=0.5)
    step = make_step(method, steps=10**6)
    probs = torch.tensor([[0.5, 0.4, 0.1], [0.8, 0.1, 0.1], [0.6, 0.3, 0.1], [0.7, 0.1, 0.2]])
    pseudo = pseudo_labels(method, step, probs)
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
    """A mean and a variance per predicted class."""
    method = SoftMatch(align=False, per_class=True, momentum=0.9)
    step = make_step(method, steps=10**6)
    conf = {0: [0.5, 0.7, 0.9], 1: [0.6], 2: []}
    rows = [[c if k == label else (1 - c) / 2 for k in range(3)] for label, cs in conf.items() for c in cs]
    pseudo = pseudo_labels(method, step, torch.tensor(rows))
    means = [0.9 / 3 + 0.1 * 0.7, 0.9 / 3 + 0.1 * 0.6, 1 / 3]
    variances = [0.9 + 0.1 * 0.04, 1.0, 1.0]
    torch.testing.assert_close(method.mean, torch.tensor(means))
    torch.testing.assert_close(method.variance, torch.tensor(variances))
    expected = [w for c in range(3) for w in slow_weights(conf[c], means[c], variances[c])]
    torch.testing.assert_close(pseudo.weights, torch.tensor(expected))


def test_weights_use_the_gaussian_of_the_predicted_class():
    method = SoftMatch(align=False, per_class=True).eval()
    step = make_step(method, steps=10**6)
    method.eval()
    method.mean.copy_(torch.tensor([0.9, 0.4, 0.4]))
    method.variance.copy_(torch.tensor([0.01, 0.01, 0.01]))
    pseudo = pseudo_labels(method, step, torch.tensor([[0.6, 0.2, 0.2], [0.2, 0.6, 0.2]]))
    torch.testing.assert_close(pseudo.weights, torch.tensor([math.exp(-(0.3**2) / (2 * 0.01 / 4)), 1.0]))


def test_without_alignment_the_confidence_of_the_calibrator_is_used():
    method = SoftMatch(align=False)
    step = make_step(method, steps=10**6)
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
        step = make_step(method, steps=10**6)
        results.append(pseudo_labels(method, step, chosen).weights)
    assert ((results[0] >= 0) & (results[0] <= 1)).all()
    torch.testing.assert_close(results[0][order], results[1])


def test_two_processes_share_their_statistics_per_class():
    probs = random_probs(8)
    methods = [SoftMatch(momentum=0.5, per_class=True) for _ in range(3)]
    steps = [make_step(method) for method in methods]
    whole = pseudo_labels(methods[2], steps[2], probs)

    def work(rank, gather):
        return pseudo_labels(methods[rank], part_of(steps[rank], rank, gather), probs[rank::2])

    for rank, pseudo in enumerate(two_processes(work)):
        torch.testing.assert_close(pseudo.weights, whole.weights[rank::2])
        for name, value in buffers(methods[2]).items():
            torch.testing.assert_close(methods[rank].state_dict()[name], value)
