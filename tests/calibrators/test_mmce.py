import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from netcal.regularization import MMCEPenalty
from tests.helpers.tiny import INPUTS, buffers, make_step, part_of, run, same, two_processes

from vcc_infuse import FixMatch
from vcc_infuse.calibrators.mmce import MMCE, gathered_mmce, mmce
from vcc_infuse.errors import UserError
from vcc_infuse.models import Classifier, SmallConv
from vcc_infuse.types import WeakOutputs


def sample(n=40, classes=4, seed=0):
    g = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(n, classes, generator=g).double(), torch.randint(classes, (n,), generator=g)


def top_label(logits, labels):
    confidence, predicted = logits.softmax(1).max(1)
    return confidence, (predicted == labels).to(logits)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(6, 40))
def test_weighted_agrees_with_netcal(seed, n):
    logits, labels = sample(n, seed=seed)
    labels[:2] = logits[:2].argmax(1)
    labels[2] = (logits[2].argmax() + 1) % 4
    mine, theirs = (logits.clone().requires_grad_() for _ in range(2))
    ours, netcal = mmce(*top_label(mine, labels)), MMCEPenalty()(theirs, labels)
    torch.testing.assert_close(ours, netcal)
    for value in (ours, netcal):
        value.backward()
    torch.testing.assert_close(mine.grad, theirs.grad, atol=1e-7, rtol=1e-5)


def test_plain_agrees_with_a_slow_loop():
    confidence, correct = top_label(*sample())
    total = 0.0
    for r, c in zip(confidence.tolist(), correct.tolist(), strict=True):
        for s, d in zip(confidence.tolist(), correct.tolist(), strict=True):
            total += (c - r) * (d - s) * torch.tensor(-abs(r - s) / 0.4).exp().item()
    assert mmce(confidence, correct, weighted=False).item() == pytest.approx((total / 40**2) ** 0.5, rel=1e-6)


@pytest.mark.parametrize("weighted", [True, False])
def test_order_has_no_effect_and_a_calibrated_batch_scores_low(weighted):
    confidence, correct = torch.full((100,), 0.7).double(), (torch.arange(100) < 70).double()
    order = torch.randperm(100)
    assert mmce(confidence, correct, weighted=False) < 1e-5
    random, right = top_label(*sample(100))
    torch.testing.assert_close(
        mmce(random, right, weighted=weighted), mmce(random[order], right[order], weighted=weighted)
    )
    assert mmce(torch.full((100,), 0.95).double(), correct, weighted=False) == pytest.approx(0.25)


@pytest.mark.parametrize("weighted", [True, False])
def test_gathered_form_has_the_value_and_gradient_of_the_global_batch(weighted):
    logits, labels = sample(24)
    whole = logits.clone().requires_grad_()
    expected = mmce(*top_label(whole, labels), weighted=weighted)
    expected.backward()

    def work(rank, gather):
        part = logits[rank::2].clone().requires_grad_()
        value = gathered_mmce(*top_label(part, labels[rank::2]), weighted=weighted, gather=gather)
        value.backward()
        return value.detach(), part.grad

    for rank, (value, gradient) in enumerate(two_processes(work)):
        torch.testing.assert_close(value, expected.detach())
        torch.testing.assert_close(gradient / 2, whole.grad[rank::2])  # the trainer divides by two
    alone = logits.clone().requires_grad_()
    gathered_mmce(*top_label(alone, labels), weighted=weighted).backward()
    torch.testing.assert_close(alone.grad, whole.grad)


def train(logits, labels_of, weighted, steps=300):
    """Minimize the penalty alone over a scale of the logits; return the mean confidence."""
    sharpness = torch.zeros((), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([sharpness], lr=0.05)
    for _ in range(steps):
        scaled = sharpness.exp() * logits
        loss = mmce(*top_label(scaled, labels_of(scaled)), weighted=weighted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return top_label(sharpness.exp().detach() * logits, labels_of(logits))[0].mean().item()


def test_own_argmax_as_label_drives_confidence_to_one_and_other_labels_do_not():
    """Measured against itself a network is always right; the plain error is then the missing confidence."""
    logits, _ = sample(100)
    honest = torch.multinomial(logits.softmax(1), 1, generator=torch.Generator().manual_seed(1)).squeeze(1)
    before = top_label(logits, honest)[0].mean().item()
    assert train(logits, lambda z: z.argmax(1), weighted=False) > 0.99
    accuracy = top_label(logits, honest)[1].mean().item()
    assert train(logits, lambda z: honest, weighted=False) == pytest.approx(accuracy, abs=0.05)
    assert train(logits, lambda z: z.argmax(1), weighted=True) == pytest.approx(before)  # ours: nothing to compare


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("right", [0.0, 1.0])
def test_batches_all_right_or_all_wrong_have_finite_gradients(weighted, right):
    confidence = torch.tensor([0.3, 1.0, 1.0, 0.9], requires_grad=True)
    gathered_mmce(confidence, torch.full((4,), right), weighted=weighted).backward()
    assert confidence.grad.isfinite().all()


def image_step(calibrator, views=("weak", "strong", "labeled_strong")):
    """A step with BatchNorm in the model."""
    step = make_step(FixMatch(), calibrator=calibrator, batch=6, ratio=2)
    torch.manual_seed(0)
    step.model = Classifier.build(SmallConv(2), (1, 8, 8), 3).train()
    step.ema = copy.deepcopy(step.model).eval()
    sizes = {"labeled_strong": 6}
    views = {name: torch.randn(sizes.get(name, 12), 1, 8, 8) for name in views}
    step.batch = step.batch._replace(x=torch.randn(6, 1, 8, 8), views=views)
    return step


@pytest.mark.parametrize("labels", ["both", "labeled_strong", "weak_strong"])
def test_loss_is_the_error_on_strong_views_and_reaches_the_model(labels):
    calibrator = MMCE(labels=labels, weight=3.0, weighted=False)
    step = image_step(calibrator)
    with torch.no_grad():
        weak = WeakOutputs(*step.model(step.batch.views["weak"]))
    before = buffers(step.model)
    calibrated = step.confidence(step.batch.views["weak"], weak)
    assert same(before, buffers(step.model)), "BatchNorm statistics must not change"
    images = {"labeled_strong": step.batch.views["labeled_strong"], "weak_strong": step.batch.views["strong"][:6]}
    truth = {"labeled_strong": step.batch.y, "weak_strong": weak.logits[:6].argmax(1)}
    names = list(images) if labels == "both" else [labels]
    logits = step.model(torch.cat([images[name] for name in names])).logits
    expected = 3 * mmce(*top_label(logits, torch.cat([truth[name] for name in names])), weighted=False)
    torch.testing.assert_close(calibrated.loss, expected)
    calibrated.loss.backward()
    mine = [p.grad.clone() for p in step.model.parameters()]
    step.model.zero_grad()
    expected.backward()
    for gradient, p in zip(mine, step.model.parameters(), strict=True):
        torch.testing.assert_close(gradient, p.grad, atol=1e-6, rtol=1e-4)
    assert any(gradient.abs().max() > 0 for gradient in mine)


def test_confidence_is_the_softmax_and_eval_mode_has_no_loss():
    step = image_step(MMCE())
    outputs = WeakOutputs(*step.model(step.batch.views["weak"]).detach())
    assert torch.equal(step.confidence(step.batch.views["weak"], outputs).probs, outputs.logits.softmax(1))
    step.calibrate.eval()
    assert step.confidence(step.batch.views["weak"], outputs).loss is None


def test_loss_works_with_an_algorithm_in_bf16():
    step = image_step(MMCE())
    with torch.autocast("cpu", torch.bfloat16):
        losses = run(FixMatch(), step)
    assert losses["calibration"].dtype == torch.float32
    assert losses["calibration"] > 0
    losses.total().backward()
    assert all(p.grad.isfinite().all() for p in step.model.parameters())


def test_two_processes_have_the_loss_of_one():
    step = make_step(FixMatch(), calibrator=MMCE(labels="labeled_strong", weighted=False), batch=8)
    step.batch = step.batch._replace(views={"weak": torch.randn(16, INPUTS), "labeled_strong": torch.randn(8, INPUTS)})
    step.model.eval()
    step.weak = WeakOutputs(*step.model(step.batch.views["weak"]).detach())
    whole = step.confidence(step.batch.views["weak"], step.weak).loss
    gradients = torch.autograd.grad(whole, list(step.model.parameters()))

    def work(rank, gather):
        mine = part_of(step, rank, gather)
        mine.model = copy.deepcopy(step.model)
        loss = step.calibrate(mine, mine.batch.views["weak"], mine.weak).loss
        return loss.detach(), torch.autograd.grad(loss, list(mine.model.parameters()))

    results = two_processes(work)
    for value, _ in results:
        torch.testing.assert_close(value, whole.detach())
    for one, other, expected in zip(results[0][1], results[1][1], gradients, strict=True):
        torch.testing.assert_close((one + other) / 2, expected, atol=1e-6, rtol=1e-4)


def test_without_labeled_views_the_strong_view_still_gives_a_loss():
    step = image_step(MMCE(), views=("weak", "strong"))
    outputs = WeakOutputs(*step.model(step.batch.views["weak"]).detach())
    assert step.confidence(step.batch.views["weak"], outputs).loss > 0
    step = image_step(MMCE(), views=("weak",))
    with pytest.warns(UserWarning, match="weak_strong"):
        assert step.confidence(step.batch.views["weak"], outputs).loss is None


def test_views_and_errors():
    assert MMCE().labeled_views == ("strong",)
    assert MMCE(labels="weak_strong").labeled_views == ()
    for wrong in ({"labels": "held_out"}, {"weight": -1.0}):
        with pytest.raises(UserError, match=next(iter(wrong))):
            MMCE(**wrong)
