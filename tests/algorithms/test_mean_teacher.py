import copy

import pytest
import torch
from torch import nn

from tests.helpers import slow
from tests.helpers.tiny import buffers, make_step, run, same
from vcc_infuse.algorithms.mean_teacher import MeanTeacher, as_in_training


@pytest.fixture
def algorithm():
    return MeanTeacher(weight=50, rampup_fraction=0.4)


@pytest.fixture
def step(algorithm):
    """A step halfway up the ramp, with a teacher that differs from the student."""
    step = make_step(algorithm, ratio=1, number=20)
    step.batch = step.batch._replace(weights=torch.tensor([0.0, 0.5, 1.0, 2.5]))
    with torch.no_grad():
        for parameter in step.ema.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return step


def teacher_probs(step):
    return slow.predictions(copy.deepcopy(step.ema).train(), step.batch.views["weak"])


def test_the_loss_equals_the_slow_loop(algorithm, step):
    student = slow.predictions(step.model, step.batch.views["weak_2"])
    pairs = zip(step.batch.weights.tolist(), teacher_probs(step), student, strict=True)
    expected = 50 * 0.5 * slow.mean([w * slow.mean_squares(t, s) for w, t, s in pairs])
    assert expected > 0.01
    assert run(algorithm, step)["unlabeled"].item() == pytest.approx(expected, rel=1e-4)


def test_the_student_gets_the_gradient_of_its_own_prediction(algorithm, step):
    """If the logits of the student came from the teacher, loss and gradient would be zero."""
    twin, target = copy.deepcopy(step.model), teacher_probs(step)
    probs = twin(step.batch.views["weak_2"]).logits.softmax(1)
    loss = torch.zeros(())
    for i, weight in enumerate(step.batch.weights.tolist()):
        for c in range(3):
            loss = loss + 25 * weight * (probs[i, c] - target[i][c]) ** 2 / (4 * 3)
    expected = slow.gradients(loss, twin)
    found = slow.gradients(run(algorithm, step)["unlabeled"], step.model)
    assert found.keys() == expected.keys() == dict(step.model.named_parameters()).keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-3, atol=1e-5)
    assert max(g.abs().max() for g in found.values()) > 0.01


def test_the_teacher_normalizes_by_its_batch(algorithm, step):
    found = algorithm.target(step)
    torch.testing.assert_close(found, torch.tensor(teacher_probs(step)), rtol=1e-4, atol=1e-6)
    by_running_statistics = torch.tensor(slow.predictions(step.ema, step.batch.views["weak"]))
    assert not torch.allclose(found, by_running_statistics, atol=1e-3)


def test_the_teacher_is_unchanged(algorithm, step):
    before = buffers(step.ema)
    run(algorithm, step).total().backward()
    assert same(before, buffers(step.ema))
    assert not any(module.training for module in step.ema.modules())
    assert all(p.grad is None and not p.requires_grad for p in step.ema.parameters())


def test_mixed_modes_are_restored_even_after_an_error():
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Dropout()).eval()
    model[1].train()
    with pytest.raises(ValueError, match="more than 1 value"), as_in_training(model):
        model(torch.zeros(1, 2))  # one row has no batch statistics
    assert [m.training for m in model] == [False, True]
    assert model[0].track_running_stats


def test_only_labeled_images_update_the_statistics(algorithm, step):
    twin = copy.deepcopy(step.model)
    twin(step.batch.x)
    run(algorithm, step)
    assert same(buffers(step.model), buffers(twin))
