import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F

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
from vcc_infuse.algorithms.dash import Dash
from vcc_infuse.errors import UserError


def measured(loss, number=5, steps=100, **options):
    """A method that found this labeled loss in its warm-up of 5 steps."""
    method = Dash(**options)
    step = make_step(method, number=number, steps=steps)
    method.loss_sum.fill_(4 * loss)
    method.loss_count.fill_(4)
    return method, step


def at(step, number, steps):
    return dataclasses.replace(step, number=number, steps=steps)


def test_the_published_schedule_at_the_published_length():
    method, step = measured(2.0)
    assert method.warmup_steps(at(step, 0, 2**20)) == 2048
    for since, periods in [(0, 0), (10239, 0), (10240, 1), (20479, 1), (20480, 2), (51200, 5)]:
        got = method.threshold(at(step, 2048 + since, 2**20)).item()
        assert got == pytest.approx(1.0001 * 1.27**-periods * 2.0, rel=1e-5)
    assert method.threshold(at(step, 2**20 - 1, 2**20)).item() == pytest.approx(0.05)


def test_a_short_run_keeps_the_proportions():
    method, step = measured(2.0)
    assert method.warmup_steps(at(step, 0, 1024)) == 51
    assert method.threshold(at(step, 51 + 9, 1024)).item() == pytest.approx(1.0001 * 2.0)
    assert method.threshold(at(step, 51 + 10, 1024)).item() == pytest.approx(1.0001 * 2.0 / 1.27)
    assert method.warmup_steps(at(step, 0, 3)) == 1


def test_warm_up_is_supervised_only():
    method = Dash()
    step = make_step(method, number=4)
    terms = run(method, step)
    assert list(terms) == ["labeled"]
    assert terms.pseudo is None
    step.number = 5
    assert list(run(method, step)) == ["labeled", "unlabeled"]


def test_threshold_is_measured_on_labeled_training_images_only():
    """Of the last pass over six labeled images in batches of four: the last two of five steps."""
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


def test_before_anything_is_measured_an_ignorant_model_is_assumed():
    method = Dash()
    step = make_step(method)
    assert method.threshold(step).item() == pytest.approx(1.0001 * math.log(3), rel=1e-4)


def test_soft_targets_above_the_lowest_threshold():
    method, step = measured(0.5)
    torch.manual_seed(1)
    probs = random_probs(8)
    pseudo = judged(method, step, probs)
    weights = []
    for row, target in zip(probs.tolist(), pseudo.targets, strict=True):
        squares = [p * p for p in row]
        soft = [s / sum(squares) for s in squares]
        torch.testing.assert_close(target, torch.tensor(soft))
        weights.append(float(-sum(q * math.log(p) for q, p in zip(soft, row, strict=True)) <= 1.0001 * 0.5))
    assert pseudo.weights.tolist() == weights
    assert 0 < sum(weights) < 8


def test_hard_targets_at_the_lowest_threshold():
    method, step = measured(0.01)
    probs = torch.tensor([[0.94, 0.03, 0.03], [0.02, 0.96, 0.02], [0.3, 0.3, 0.4]])
    pseudo = judged(method, step, probs)
    assert pseudo.targets.tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    assert pseudo.weights.tolist() == [0, 1, 0]  # exp(−0.05) = 0.951


def test_permuting_the_batch_permutes_the_labels():
    method, step = measured(0.5)
    probs, order = random_probs(8), torch.randperm(8)
    one, other = judged(method, step, probs), judged(method, step, probs[order])
    assert torch.equal(one.targets[order], other.targets)
    assert torch.equal(one.weights[order], other.weights)
    torch.testing.assert_close(one.targets.sum(1), torch.ones(8))


def test_a_resumed_run_goes_on_measuring():
    one, other = Dash(), Dash()
    step = make_step(one, number=3)
    make_step(other)
    run(one, step)
    other.load_state_dict(one.state_dict())
    step.number = 4
    step.model.eval()
    run(one, step)
    run(other, step)
    assert same(buffers(one), buffers(other))
    assert one.loss_count.item() == 8


def test_eval_mode_changes_no_buffer():
    method = Dash()
    step = make_step(method, number=4)
    method.eval()
    before = buffers(method)
    run(method, step)
    judged(method, step, random_probs(4))
    assert same(before, buffers(method))


def test_two_processes_share_the_measurement():
    alone, *parts = [Dash() for _ in range(3)]
    steps = [make_step(method, number=4) for method in (alone, *parts)]
    for step in steps:
        step.model.eval()
    run(alone, steps[0])

    def work(rank, gather):
        run(parts[rank], part_of(steps[1 + rank], rank, gather))
        return parts[rank]

    for method in two_processes(work):
        torch.testing.assert_close(method.loss_sum, alone.loss_sum)
        assert method.loss_count.item() == 4


@pytest.mark.parametrize("number", [0, 50])
def test_finite_gradients_reach_every_parameter(number):
    method = Dash()
    step = make_step(method, number=number)
    with torch.autocast("cpu", torch.bfloat16):
        terms = run(method, step)
    assert missing_gradients(terms, step.model) == []


@pytest.mark.parametrize("wrong", [{"warmup": 0}, {"warmup_share": 2}, {"shrink": 0.5}, {"temperature": 0}])
def test_wrong_options_are_named(wrong):
    with pytest.raises(UserError, match=next(iter(wrong))):
        Dash(**wrong)
