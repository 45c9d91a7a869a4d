import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import slow
from tests.helpers.tiny import buffers, make_step, run, same
from vcc_infuse.algorithms.pi_model import PiModel, squared_error


def weighted_step(algorithm, **options):
    step = make_step(algorithm, ratio=1, **options)
    step.batch = step.batch._replace(weights=torch.tensor([0.0, 0.5, 1.0, 2.5]))
    return step


def test_losses_equal_the_slow_loop():
    algorithm = PiModel(weight=10, rampup_fraction=0.4)
    step = weighted_step(algorithm, number=10)
    first, second = (slow.predictions(step.model, step.batch.views[name]) for name in ("weak", "weak_2"))
    labeled = slow.predictions(step.model, step.batch.x)
    each = [w * slow.mean_squares(a, b) for w, a, b in zip(step.batch.weights.tolist(), first, second, strict=True)]
    truth = [slow.cross_entropy(slow.one_hot(y), p) for y, p in zip(step.batch.y.tolist(), labeled, strict=True)]
    losses = run(algorithm, step)
    assert losses["unlabeled"].item() == pytest.approx(10 * (0.1 / 0.4) * slow.mean(each), rel=1e-4)
    assert losses["labeled"].item() == pytest.approx(slow.mean(truth), rel=1e-5)


def test_the_first_view_is_a_fixed_target():
    algorithm = PiModel()
    step = weighted_step(algorithm, number=80)
    twin = copy.deepcopy(step.model)
    target = torch.tensor(slow.predictions(twin, step.batch.views["weak"]))
    probs = twin(step.batch.views["weak_2"]).logits.softmax(1)
    expected = slow.gradients(10 * (step.batch.weights[:, None] * (probs - target) ** 2).sum() / target.numel(), twin)
    found = slow.gradients(run(algorithm, step)["unlabeled"], step.model)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-3, atol=1e-5)
    assert max(g.abs().max() for g in found.values()) > 1e-3


def test_only_labeled_images_update_the_statistics():
    algorithm = PiModel()
    step = weighted_step(algorithm)
    twin = copy.deepcopy(step.model)
    twin(step.batch.x)
    run(algorithm, step)
    assert same(buffers(step.model), buffers(twin))


@pytest.mark.parametrize(("number", "factor"), [(0, 0), (20, 0.5), (40, 1), (99, 1)])
def test_the_weight_ramps_up(number, factor):
    full, now = PiModel(rampup_fraction=0), PiModel(rampup_fraction=0.4)
    expected = run(full, weighted_step(full, number=number))["unlabeled"] * factor
    torch.testing.assert_close(run(now, weighted_step(now, number=number))["unlabeled"], expected)


@given(st.lists(st.lists(st.floats(-20, 20), min_size=3, max_size=3), min_size=1, max_size=5), st.floats(0, 3))
def test_squared_error_is_bounded_scales_and_vanishes(rows, weight):
    logits = torch.tensor(rows)
    targets, ones = torch.eye(3)[torch.arange(len(rows)) % 3], torch.ones(len(rows))
    error = squared_error(logits, targets, ones)
    assert 0 <= error <= 2 / 3 + 1e-6
    torch.testing.assert_close(squared_error(logits, targets, weight * ones), weight * error)
    assert squared_error(logits, logits.softmax(1), ones) == 0
