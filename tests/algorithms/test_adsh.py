import dataclasses

import pytest
import torch

from tests.helpers.tiny import buffers, make_step, make_task, pseudo_labels, same
from vcc_infuse.algorithms import Adsh


def with_confidence(label, confidence):
    rest = (1 - confidence) / 2
    return [confidence if c == label else rest for c in range(3)]


def slow_thresholds(predictions, head, tau, before):
    """From the definition, one class at a time."""
    ranked = [sorted((conf for label, conf in predictions if label == c), reverse=True) for c in range(3)]
    rho = sum(conf >= tau for conf in ranked[head]) / max(1, len(ranked[head]))
    found = list(before)
    for c in range(3):
        place = int(rho * len(ranked[c]) + 1e-9)
        if c != head and place > 0:
            found[c] = ranked[c][place - 1]
    return found


def test_the_first_interval_uses_the_given_threshold():
    """Starting from s = 0.95 instead of −log 0.95 would keep everything above exp(−0.95) = 0.387."""
    method = Adsh()
    step = make_step(method)
    pseudo = pseudo_labels(
        method,
        step,
        torch.tensor(
            [with_confidence(0, 0.96), with_confidence(1, 0.6), with_confidence(2, 0.9), with_confidence(1, 0.951)]
        ),
    )
    assert pseudo.weights.tolist() == [1, 0, 0, 1]


@pytest.mark.parametrize("seed", range(5))
def test_thresholds_follow_a_slow_loop(seed):
    method = Adsh(threshold=0.8, every=10)
    step = make_step(method, pool=60, labeled=7, seed=seed)
    labels = torch.multinomial(torch.tensor([0.6, 0.3, 0.1]), 60, replacement=True).tolist()
    confidence = (0.4 + 0.6 * torch.rand(60)).tolist()
    pseudo_labels(method, step, torch.tensor([with_confidence(*pair) for pair in zip(labels, confidence, strict=True)]))
    assert method.thresholds.tolist() == pytest.approx([0.8] * 3)
    step.number = 10
    pseudo = pseudo_labels(method, step, torch.tensor([with_confidence(c, 0.75) for c in range(3)]))
    expected = slow_thresholds(list(zip(labels, confidence, strict=True)), 0, 0.8, [0.8] * 3)
    assert method.thresholds.tolist() == pytest.approx(expected)
    assert pseudo.weights.tolist() == [float(t <= 0.75) for t in expected]
    assert min(expected) < 0.8 or max(expected) > 0.8, "a threshold must change"


def test_each_class_keeps_the_same_fraction_as_the_head_class():
    """Also a class with low confidence throughout."""
    method = Adsh(threshold=0.9, every=10)
    step = make_step(method, pool=30)
    head = [with_confidence(0, 0.95)] * 8 + [with_confidence(0, 0.5)] * 2
    tail = [with_confidence(1, 0.4 + 0.01 * i) for i in range(20)]
    pseudo_labels(method, step, torch.tensor(head + tail))
    step.number = 10
    assert (
        pseudo_labels(method, step, torch.tensor(head + tail)).weights.tolist()
        == [1] * 8 + [0] * 2 + [0] * 4 + [1] * 16
    )


def test_the_head_class_is_the_one_with_most_labels():
    method = Adsh()
    step = make_step(method)
    method.setup(step.model, dataclasses.replace(make_task(), label_counts=torch.tensor([1, 2, 9])))
    assert method.head == 2


def test_thresholds_stay_where_the_head_class_is_never_confident():
    method = Adsh(every=10)
    step = make_step(method)
    pseudo_labels(
        method,
        step,
        torch.tensor(
            [with_confidence(0, 0.5), with_confidence(1, 0.6), with_confidence(1, 0.7), with_confidence(2, 0.8)]
        ),
    )
    step.number = 10
    pseudo_labels(method, step, torch.tensor([with_confidence(0, 0.5)]))
    assert method.thresholds.tolist() == pytest.approx([0.95] * 3)


def test_thresholds_change_only_every_given_number_of_steps_and_only_in_training():
    method = Adsh(threshold=0.6, every=10)
    step = make_step(method, number=15)
    rows = torch.tensor([with_confidence(0, 0.9), with_confidence(1, 0.5), with_confidence(2, 0.5)])
    pseudo_labels(method, step, rows)
    assert method.thresholds.tolist() == pytest.approx([0.6] * 3)
    before, step.number = buffers(method.eval()), 20
    pseudo_labels(method, step, rows)
    assert same(before, buffers(method))
    pseudo_labels(method.train(), step, rows)
    assert method.thresholds.tolist() == pytest.approx([0.6, 0.5, 0.5])


def test_predictions_outside_the_core_set_are_forgotten():
    method = Adsh()
    step = make_step(method, pool=5)
    pseudo_labels(method, step, torch.tensor([with_confidence(1, 0.9)] * 5))
    method.on_coreset_change(torch.tensor([3, 1]))
    assert method.labels.tolist() == [-1, 1, -1, 1, -1]


@pytest.mark.parametrize(("steps", "period"), [(100, 5), (2**20, 1024)])
def test_the_default_interval_is_a_twentieth_of_the_run_and_at_most_1024_steps(steps, period):
    method = Adsh(threshold=0.6)
    step = make_step(method, steps=steps, number=period - 1)
    rows = torch.tensor([with_confidence(0, 0.9), with_confidence(1, 0.5)])
    for _ in range(2):
        pseudo_labels(method, step, rows)
    assert method.thresholds.tolist() == pytest.approx([0.6] * 3)
    step.number = period
    pseudo_labels(method, step, rows)
    assert method.thresholds.tolist() == pytest.approx([0.6, 0.5, 0.6])
