import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F

from tests.helpers.tiny import (
    make_step,
    pseudo_labels,
    random_probs,
    run,
)
from vcc_infuse.algorithms.dash import Dash
from vcc_infuse.errors import UserError


def measured(loss, number=5, steps=100, **options):
    """A method that measured this labeled loss in its warm-up of 5 steps."""
    method = Dash(**options)
    step = make_step(method, number=number, steps=steps)
    method.loss_sum.fill_(4 * loss)
    method.loss_count.fill_(4)
    return method, step


def at(step, number, steps):
    return dataclasses.replace(step, number=number, steps=steps)


def test_the_published_schedule_at_the_published_length():
    method, step = measured(2.0)
    assert method.warmup_length(at(step, 0, 2**20)) == 2048
    for since, periods in [(0, 0), (10239, 0), (10240, 1), (20479, 1), (20480, 2), (51200, 5)]:
        got = method.threshold(at(step, 2048 + since, 2**20)).item()
        assert got == pytest.approx(1.0001 * 1.27**-periods * 2.0, rel=1e-5)
    assert method.threshold(at(step, 2**20 - 1, 2**20)).item() == pytest.approx(0.05)


def test_a_short_run_keeps_the_proportions():
    method, step = measured(2.0)
    assert method.warmup_length(at(step, 0, 1024)) == 51
    assert method.threshold(at(step, 51 + 9, 1024)).item() == pytest.approx(1.0001 * 2.0)
    assert method.threshold(at(step, 51 + 10, 1024)).item() == pytest.approx(1.0001 * 2.0 / 1.27)
    assert method.warmup_length(at(step, 0, 3)) == 1


def test_warm_up_is_supervised_only():
    method = Dash()
    step = make_step(method, number=4)
    terms = run(method, step)
    assert list(terms) == ["labeled"]
    assert terms.pseudo is None
    step.number = 5
    assert list(run(method, step)) == ["labeled", "unlabeled"]


def test_threshold_is_measured_on_labeled_training_images_only():
    """In the last pass over six labeled images in batches of four: the last two of five steps."""
    method = Dash()
    step = make_step(method)
    step.model.eval()
    expected = []
    for number in range(8):
        step.number = number
        torch.manual_seed(number)
        step.batch = step.batch._replace(x=torch.randn(4, 6))
        if number in (3, 4):
            logits = step.model(step.batch.x).logits
            expected += F.cross_entropy(logits, step.batch.y, reduction="none").tolist()
        run(method, step)
    step.number = 5
    assert method.threshold(step).item() == pytest.approx(1.0001 * sum(expected) / 8, rel=1e-4)


def test_before_any_measurement_the_threshold_is_the_loss_of_a_uniform_prediction():
    method = Dash()
    step = make_step(method)
    assert method.threshold(step).item() == pytest.approx(1.0001 * math.log(3), rel=1e-4)


def test_soft_targets_above_the_minimum_threshold():
    method, step = measured(0.5)
    torch.manual_seed(1)
    probs = random_probs(8)
    pseudo = pseudo_labels(method, step, probs)
    weights = []
    for row, target in zip(probs.tolist(), pseudo.targets, strict=True):
        squares = [p * p for p in row]
        soft = [s / sum(squares) for s in squares]
        torch.testing.assert_close(target, torch.tensor(soft))
        weights.append(float(-sum(q * math.log(p) for q, p in zip(soft, row, strict=True)) <= 1.0001 * 0.5))
    assert pseudo.weights.tolist() == weights
    assert 0 < sum(weights) < 8


def test_hard_targets_at_the_minimum_threshold():
    method, step = measured(0.01)
    probs = torch.tensor([[0.94, 0.03, 0.03], [0.02, 0.96, 0.02], [0.3, 0.3, 0.4]])
    pseudo = pseudo_labels(method, step, probs)
    assert pseudo.targets.tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    assert pseudo.weights.tolist() == [0, 1, 0]  # exp(−0.05) = 0.951


def test_a_threshold_that_grows_is_refused():
    with pytest.raises(UserError, match="shrink must be a finite number of at least 1, got 0.5"):
        Dash(shrink=0.5)
