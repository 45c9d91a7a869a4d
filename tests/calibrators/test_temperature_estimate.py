from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from vcc_infuse.calibrators.hard_view_temperature import RunningTemperature, TemperatureEstimate, newton_step
from vcc_infuse.types import Batch, Outputs, Step


class Ema(nn.Module):
    """A network whose features are its inputs and whose head multiplies them."""

    def __init__(self, classes, factor=1.0):
        super().__init__()
        self.head = nn.Linear(classes, classes, bias=False)
        self.head.weight.data = factor * torch.eye(classes)

    def forward(self, x):
        return Outputs(self.head(x), x)


def overconfident(n: int = 2000, factor: float = 3.0) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    honest = 2 * torch.randn(n, 4, generator=g)
    return factor * honest, torch.multinomial(honest.softmax(1), 1, generator=g).squeeze(1)


def step_with(strong: torch.Tensor, weak: torch.Tensor, labels: torch.Tensor, factor: float = 1.0) -> Step:
    batch = Batch(weak, labels, labels, {"labeled_strong": strong, "strong": strong}, labels, labels)
    return Step(batch, lambda x: x, Ema(strong.shape[1], factor), lambda *a: None)


def fill_gap_memory(estimate: TemperatureEstimate, right: float, confidence: float, count: int = 100) -> None:
    """As after `count` labeled images with accuracy `right` and as many unlabeled ones with this confidence."""
    rights = (torch.arange(count) < right * count).float()
    estimate.gap_memory.push(correct=rights, confidence=torch.full((count,), confidence))


@pytest.mark.parametrize("soft", [False, True])
def test_newton_finds_the_minimum_that_lbfgs_finds(soft):
    logits, labels = overconfident()
    targets = (logits / 3).softmax(1) if soft else F.one_hot(labels, 4).float()
    beta = torch.tensor(1.0)
    for _ in range(12):
        beta = newton_step(beta, logits, targets)
    free = torch.tensor(1.0, requires_grad=True)
    optimizer = torch.optim.LBFGS([free], lr=0.1, max_iter=200)

    def loss():
        optimizer.zero_grad()
        value = F.cross_entropy(free * logits, targets)
        value.backward()
        return value

    optimizer.step(loss)
    assert beta.item() == pytest.approx(free.item(), rel=1e-3)
    assert 1 / beta.item() == pytest.approx(3, rel=0.15)


def test_running_temperature_follows_its_examples():
    temperature = RunningTemperature(4, 512)
    logits, labels = overconfident()
    for rows in torch.arange(2000).split(200):
        temperature.observe(logits[rows], F.one_hot(labels[rows], 4).float())
    assert 1 / temperature.inverse.item() == pytest.approx(3, rel=0.25)


def test_estimate_is_the_geometric_mean_but_never_below_one():
    estimate = TemperatureEstimate(3)
    fill_gap_memory(estimate, 1, 0.5)
    for strong, mixed, expected in ((0.9, 2.5, 1.5), (2.0, 8.0, 4.0), (8.0, 0.5, 2.0), (0.5, 1.2, 1.0)):
        estimate.strong.inverse.fill_(1 / strong)
        estimate.mixed.inverse.fill_(1 / mixed)
        assert 1 / estimate.inverse.item() == pytest.approx(expected)
    assert torch.equal(estimate(torch.ones(2, 3)), torch.ones(2, 3) * estimate.inverse)


def test_mixed_features_raise_the_temperature_of_a_sharp_head():
    """A head that jumps between classes is confident in mixtures too, so it needs a higher temperature."""
    labels = torch.arange(60) % 3
    weak = F.one_hot(labels, 3).float()
    found = []
    for factor in (4.0, 40.0):
        torch.manual_seed(0)
        estimate = TemperatureEstimate(3, size=256)
        for _ in range(12):
            estimate.observe(step_with(weak, weak, labels, factor), torch.arange(60), weak)
        found.append(1 / estimate.mixed.inverse.item())
    assert found[1] == pytest.approx(10 * found[0], rel=0.1)
    assert found[1] > 4


def test_correct_labeled_images_of_low_confidence_do_not_raise_it():
    labels = torch.arange(60) % 3
    weak = 0.2 * F.one_hot(labels, 3).float()
    estimate = TemperatureEstimate(3, size=64)
    for _ in range(10):
        estimate.observe(step_with(weak, weak, labels), torch.arange(60), weak)
    assert estimate.inverse == 1


def test_wrong_labeled_images_reach_the_bound():
    estimate, labels = TemperatureEstimate(3, size=64), torch.arange(60) % 3
    wrong = 4.0 * F.one_hot((labels + 1) % 3, 3)
    for _ in range(10):
        estimate.observe(step_with(wrong, wrong, labels), torch.arange(60), wrong)
    assert estimate.inverse.item() == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("right", "confidence", "power"),
    [(1.0, 0.6, 1), (0.8, 0.8, 0), (0.8, 0.6, 0.5), (0.2, 0.8, 0.75), (0.0, 0.5, 1), (1.0, 1.0, 0), (0.0, 0.0, 0)],
)
def test_temperature_applies_in_proportion_to_the_memorization_gap(right, confidence, power):
    """Against numbers worked out by hand; a network certain of everything must not divide by 0."""
    estimate, plain = TemperatureEstimate(3), TemperatureEstimate(3, memorization_gate=False)
    for one in (estimate, plain):
        fill_gap_memory(one, right, confidence)
        one.strong.inverse.fill_(1 / 2)
        one.mixed.inverse.fill_(1 / 8)
    assert 1 / estimate.inverse.item() == pytest.approx(4**power, rel=1e-4)
    assert 1 / plain.inverse.item() == pytest.approx(4)


def test_gap_memory_holds_ema_outputs():
    """Three of four labeled images are correct; the confidence in unlabeled ones is that of the EMA model."""
    labels = torch.arange(60) % 3
    seen = torch.where((torch.arange(60) % 4 == 0)[:, None], torch.eye(3)[(labels + 1) % 3], torch.eye(3)[labels])
    unlabeled = torch.tensor([[0.3, 0.0, -0.1]]).repeat(40, 1)
    estimate = TemperatureEstimate(3)
    estimate.observe(step_with(seen, seen, labels, factor=5.0), torch.arange(60), unlabeled)
    sure = (5 * unlabeled[0]).softmax(0).max().item()
    assert estimate.gap_memory["confidence"][:40].tolist() == pytest.approx([sure] * 40)
    assert estimate.gap_memory["correct"][:40].mean().item() == pytest.approx(0.75)
    assert estimate.memorization_gap.item() == pytest.approx((0.75 - sure) / (1 - sure), rel=1e-4)
    assert TemperatureEstimate(3).inverse == 1


def test_unfilled_rows_have_no_effect():
    logits, labels = overconfident(40)
    small, large = RunningTemperature(4, 40), RunningTemperature(4, 400)
    for temperature in (small, large):
        for _ in range(12):
            temperature.memory.cursor.zero_()
            temperature.observe(logits, F.one_hot(labels, 4).float())
    assert small.inverse.item() == pytest.approx(large.inverse.item(), rel=1e-3)


def test_held_out_labels_decide_alone():
    """They may also raise the confidence, which images from training must not do."""
    logits, truth = overconfident(600)
    estimate, labels = TemperatureEstimate(4, held_out=True, size=600), torch.arange(60) % 4
    step = step_with(torch.eye(4)[labels], torch.eye(4)[labels], labels)

    def show(labels):
        for rows in torch.arange(600).split(60):
            views = {**step.batch.views, "held_out": logits[rows]}
            batch = step.batch._replace(views=views, held_out_y=labels[rows])
            estimate.observe(replace(step, batch=batch), torch.arange(60), logits[rows])

    show(truth)
    assert 1 / estimate.inverse.item() == pytest.approx(3, rel=0.25)
    show(logits.argmax(1))
    assert estimate.inverse > 1


def test_strong_views_are_ignored_if_the_algorithm_has_none():
    """Predictions are wrong on the strong views, which were never trained on, and right on the weak ones."""
    labels = torch.arange(60) % 3
    weak, strong = 4.0 * torch.eye(3)[labels], 4.0 * torch.eye(3)[(labels + 1) % 3]
    found = {}
    for unlabeled in ("weak", "strong"):
        torch.manual_seed(0)
        estimate, step = TemperatureEstimate(3, size=64), step_with(strong, weak, labels)
        views = {"labeled_strong": strong, unlabeled: weak}
        for _ in range(10):
            estimate.observe(replace(step, batch=step.batch._replace(views=views)), torch.arange(60), weak)
        found[unlabeled] = estimate.inverse.item()
    assert found["weak"] == 1
    assert found["strong"] < 0.5
