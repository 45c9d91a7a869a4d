import dataclasses

import pytest
import torch
from tests.helpers.tiny import buffers, judged, make_step, make_task, same

from vcc_infuse.imbalance import Adsh


def sure(label, confidence):
    rest = (1 - confidence) / 2
    return [confidence if c == label else rest for c in range(3)]


def slow_thresholds(judgments, head, tau, before):
    """From the definition, a class at a time."""
    ranked = [sorted((conf for label, conf in judgments if label == c), reverse=True) for c in range(3)]
    rho = sum(conf >= tau for conf in ranked[head]) / max(1, len(ranked[head]))
    found = list(before)
    for c in range(3):
        place = int(rho * len(ranked[c]) + 1e-9)
        if c != head and place > 0:
            found[c] = ranked[c][place - 1]
    return found


def test_the_first_epoch_uses_the_threshold_itself():
    """Starting from s = 0.95 instead of −log 0.95 would let everything above exp(−0.95) = 0.387 pass."""
    method = Adsh()
    step = make_step(method)
    pseudo = judged(method, step, torch.tensor([sure(0, 0.96), sure(1, 0.6), sure(2, 0.9), sure(1, 0.951)]))
    assert pseudo.weights.tolist() == [1, 0, 0, 1]


@pytest.mark.parametrize("seed", range(5))
def test_thresholds_follow_a_slow_loop(seed):
    method = Adsh(threshold=0.8)
    step = make_step(method, pool=60, labeled=7, seed=seed)
    labels = torch.multinomial(torch.tensor([0.6, 0.3, 0.1]), 60, replacement=True).tolist()
    confidence = (0.4 + 0.6 * torch.rand(60)).tolist()
    judged(method, step, torch.tensor([sure(*pair) for pair in zip(labels, confidence, strict=True)]))
    assert method.thresholds.tolist() == pytest.approx([0.8] * 3)
    step.number = 10
    pseudo = judged(method, step, torch.tensor([sure(c, 0.75) for c in range(3)]))
    expected = slow_thresholds(list(zip(labels, confidence, strict=True)), 0, 0.8, [0.8] * 3)
    assert method.thresholds.tolist() == pytest.approx(expected)
    assert pseudo.weights.tolist() == [float(t <= 0.75) for t in expected]
    assert min(expected) < 0.8 or max(expected) > 0.8, "the case must move a threshold"


def test_each_class_keeps_the_head_classs_share():
    """A class whose confidence is low throughout is kept as often as the head class."""
    method = Adsh(threshold=0.9)
    step = make_step(method, pool=30)
    head = [sure(0, 0.95)] * 8 + [sure(0, 0.5)] * 2
    tail = [sure(1, 0.4 + 0.01 * i) for i in range(20)]
    judged(method, step, torch.tensor(head + tail))
    step.number = 10
    assert judged(method, step, torch.tensor(head + tail)).weights.tolist() == [1] * 8 + [0] * 2 + [0] * 4 + [1] * 16


def test_the_head_class_is_the_one_with_most_labels():
    method = Adsh()
    step = make_step(method)
    method.setup(step.model, dataclasses.replace(make_task(), label_counts=torch.tensor([1, 2, 9])))
    assert method.head == 2


def test_where_the_head_class_is_never_sure_thresholds_stay():
    method = Adsh()
    step = make_step(method)
    judged(method, step, torch.tensor([sure(0, 0.5), sure(1, 0.6), sure(1, 0.7), sure(2, 0.8)]))
    step.number = 10
    judged(method, step, torch.tensor([sure(0, 0.5)]))
    assert method.thresholds.tolist() == pytest.approx([0.95] * 3)


def test_thresholds_change_only_between_epochs_and_only_in_training():
    method = Adsh(threshold=0.6)
    step = make_step(method, number=15)
    rows = torch.tensor([sure(0, 0.9), sure(1, 0.5), sure(2, 0.5)])
    judged(method, step, rows)
    assert method.thresholds.tolist() == pytest.approx([0.6] * 3)
    before, step.number = buffers(method.eval()), 20
    judged(method, step, rows)
    assert same(before, buffers(method))
    judged(method.train(), step, rows)
    assert method.thresholds.tolist() == pytest.approx([0.6, 0.5, 0.5])


def test_a_core_set_forgets_the_rest():
    method = Adsh()
    step = make_step(method, pool=5)
    judged(method, step, torch.tensor([sure(1, 0.9)] * 5))
    method.restrict(torch.tensor([3, 1]))
    assert method.labels.tolist() == [-1, 1, -1, 1, -1]
