import copy
import math

import pytest
import torch

from tests.helpers import slow
from tests.helpers.tiny import buffers, make_step, same
from vcc_infuse.algorithms.mpl import MPL


def weighted_step(algorithm, **options):
    """A teacher that differs from the student, and different core-set weights."""
    step = make_step(algorithm, **options)
    step.batch = step.batch._replace(weights=torch.linspace(0, 2, 8))
    with torch.no_grad():
        for parameter in algorithm.teacher.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    return step


def sgd(modules, lr, momentum, weight_decay):
    parameters = [p for module in modules for p in module.parameters()]
    return torch.optim.SGD(parameters, lr, momentum, weight_decay=weight_decay, nesterov=momentum > 0)


def update(losses, optimizer):
    optimizer.zero_grad(set_to_none=True)
    losses.total().backward()
    optimizer.step()


def teacher_probs(algorithm, step):
    """Weak, labeled and strong images share a batch and its statistics."""
    views = step.batch.views
    rows = slow.predictions(algorithm.teacher, torch.cat([views["weak"], step.batch.x, views["strong"]]))
    return rows[:8], rows[8:12], rows[12:]


def smoothed(label, smoothing):
    return [(1 - smoothing) * t + smoothing / 3 for t in slow.one_hot(label)]


def labels_of(rows):
    return [row.index(max(row)) for row in rows]


def labeled_loss(model, step):
    probs = slow.predictions(model, step.batch.x)
    return slow.mean([-math.log(p[y]) for p, y in zip(probs, step.batch.y.tolist(), strict=True)])


def weighted_mean(step, targets, probs):
    rows = zip(step.batch.weights.tolist(), targets, probs, strict=True)
    return slow.mean([w * slow.cross_entropy(t, p) for w, t, p in rows])


def test_the_student_learns_the_teachers_labels():
    algorithm = MPL(smoothing=0.15)
    step = weighted_step(algorithm)
    _, _, strong = teacher_probs(algorithm, step)
    targets = [smoothed(label, 0.15) for label in labels_of(strong)]
    expected = weighted_mean(step, targets, slow.predictions(step.model, step.batch.views["strong"]))
    losses = next(algorithm.losses(step))
    assert losses["student"].item() == pytest.approx(expected, rel=1e-4)
    assert losses.keys() == {"student"}
    assert losses.pseudo.labels.tolist() == labels_of(strong)


@pytest.mark.parametrize(("number", "rise"), [(0, 0.2), (3, 0.8), (4, 1), (50, 1)])
def test_the_teachers_losses_equal_the_slow_loop(number, rise):
    algorithm = MPL(weight=8, rampup_fraction=0.05, threshold=0.5, temperature=0.7, smoothing=0.15)
    step = weighted_step(algorithm, number=number)
    weak, labeled, strong = teacher_probs(algorithm, step)
    sure = [float(max(row) >= 0.5) for row in weak]
    assert 0 < sum(sure) < 8
    targets = [[s * t for t in slow.sharpened(row, 0.7)] for s, row in zip(sure, weak, strict=True)]
    optimizer = sgd([step.model, algorithm], 0.5, 0.9, 5e-4)
    before = labeled_loss(step.model, step)
    steps = algorithm.losses(step)
    update(next(steps), optimizer)
    feedback = before - labeled_loss(step.model, step)
    losses = next(steps)
    truth = [slow.cross_entropy(smoothed(y, 0.15), p) for y, p in zip(step.batch.y.tolist(), labeled, strict=True)]
    hard = [slow.one_hot(label) for label in labels_of(strong)]
    assert losses["teacher_labeled"].item() == pytest.approx(slow.mean(truth), rel=1e-4)
    expected = 8 * rise * weighted_mean(step, targets, strong)
    assert losses["teacher_consistency"].item() == pytest.approx(expected, rel=1e-4)
    expected = feedback * weighted_mean(step, hard, strong)
    assert abs(feedback) > 1e-3
    assert losses["teacher_feedback"].item() == pytest.approx(expected, rel=1e-3, abs=1e-6)
    assert next(steps, None) is None


def test_the_weak_view_is_a_fixed_target():
    algorithm = MPL(weight=1, rampup_fraction=0, threshold=0)
    step = weighted_step(algorithm)
    twin, views = copy.deepcopy(algorithm.teacher), step.batch.views
    targets = torch.tensor([slow.sharpened(row, 0.7) for row in teacher_probs(algorithm, step)[0]])
    logs = twin(torch.cat([views["weak"], step.batch.x, views["strong"]])).logits[12:].log_softmax(1)
    expected = slow.gradients(-(step.batch.weights[:, None] * targets * logs).sum() / 8, twin)
    _, second = algorithm.losses(step)
    found = slow.gradients(second["teacher_consistency"], algorithm.teacher)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(("shift", "sign"), [(0, 1), (1, -1)])
def test_feedback_is_positive_where_the_labels_help(shift, sign):
    """Correct pseudo labels lower the labeled loss of a trained student, wrong ones raise it."""
    algorithm = MPL(smoothing=0)
    step = make_step(algorithm, ratio=1)
    step.batch = step.batch._replace(views={"weak": step.batch.x, "strong": step.batch.x})
    learn(step.model, step.batch.x, step.batch.y, updates=10)
    learn(algorithm.teacher, step.batch.x, (step.batch.y + shift) % 3, updates=100)
    steps = algorithm.losses(step)
    first = next(steps)
    assert first.pseudo.labels.tolist() == ((step.batch.y + shift) % 3).tolist()
    update(first, sgd([step.model], 0.01, 0, 0))
    assert sign * next(steps)["teacher_feedback"].item() > 1e-6


def learn(model, images, labels, updates):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(updates):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images).logits, labels).backward()
        optimizer.step()


def test_each_update_changes_one_network():
    """Also in the second step, with momentum and weight decay."""
    algorithm = MPL(finetune_fraction=0)
    step = weighted_step(algorithm)
    optimizer = sgd([step.model, algorithm], 0.1, 0.9, 0.1)
    for _ in range(2):
        steps = algorithm.losses(step)
        student, teacher = weights_of(step.model), weights_of(algorithm.teacher)
        update(next(steps), optimizer)
        assert all(p.grad.isfinite().all() for p in step.model.parameters())
        assert all(p.grad is None for p in algorithm.teacher.parameters())
        assert same(weights_of(algorithm.teacher), teacher)
        assert not any(map(torch.equal, student.values(), weights_of(step.model).values()))
        student = weights_of(step.model)
        update(next(steps), optimizer)
        assert all(p.grad.isfinite().all() for p in algorithm.teacher.parameters())
        assert all(p.grad is None for p in step.model.parameters())
        assert same(weights_of(step.model), student)
        assert not any(map(torch.equal, teacher.values(), weights_of(algorithm.teacher).values()))


def weights_of(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def test_the_student_uses_no_labels_before_the_fine_tuning():
    """Other labels change the loss of the student during the fine-tuning only."""
    for number, finetunes in ((94, False), (95, True), (99, True)):
        found = []
        for shift in (0, 1):
            algorithm = MPL(finetune_fraction=0.05)
            step = weighted_step(algorithm, number=number)
            step.batch = step.batch._replace(y=(step.batch.y + shift) % 3)
            found.append(next(algorithm.losses(step)).total().item())
        assert (found[0] != found[1]) == finetunes


def test_fine_tuning_is_labeled_cross_entropy_in_one_update():
    algorithm = MPL(finetune_fraction=0.05)
    step = weighted_step(algorithm, number=97)
    (losses,) = algorithm.losses(step)
    assert losses.keys() == {"finetune"}
    twin = weighted_step(MPL(), number=97)
    assert losses["finetune"].item() == pytest.approx(labeled_loss(twin.model, twin), rel=1e-4)


def test_without_fine_tuning_there_is_none():
    algorithm = MPL(finetune_fraction=0)
    assert "student" in next(algorithm.losses(weighted_step(algorithm, number=99)))


def test_batchnorm_statistics():
    """Those of the teacher stay; those of the student see labeled and strong images once each."""
    algorithm = MPL()
    step = weighted_step(algorithm)
    teacher, twin = buffers(algorithm.teacher), copy.deepcopy(step.model)
    for images in (step.batch.x, step.batch.views["strong"]):
        twin(images)
    list(algorithm.losses(step))
    assert same(teacher, buffers(algorithm.teacher))
    assert same(buffers(twin), buffers(step.model))


def test_feedback_is_averaged_over_all_processes():
    """The other process had a loss of 5 before and of 2 after."""
    algorithm, others = MPL(), iter([5.0, 2.0])
    step = weighted_step(algorithm)
    step.gather = lambda rows: torch.cat([rows, torch.full_like(rows, next(others))])
    _, _, strong = teacher_probs(algorithm, step)
    _, second = algorithm.losses(step)  # without an update, this process has no feedback of its own
    hard = weighted_mean(step, [slow.one_hot(label) for label in labels_of(strong)], strong)
    assert second["teacher_feedback"].item() == pytest.approx(1.5 * hard, rel=1e-3)
