from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from vcc_infuse.calibrators.vcc.temperature_estimate import Scale, Temperature, newton_step
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


def know(scale: Scale, right: float, confidence: float, count: int = 100) -> None:
    """As if `count` labeled images had been right that often, and as many unlabeled ones so sure."""
    rights = (torch.arange(count) < right * count).float()
    scale.known.push(right=rights, confidence=torch.full((count,), confidence))


@pytest.mark.parametrize("soft", [False, True])
def test_newton_finds_the_minimum_that_a_general_optimizer_finds(soft):
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


def test_a_temperature_follows_the_examples_it_is_shown():
    temperature = Temperature(4, 512)
    logits, labels = overconfident()
    for rows in torch.arange(2000).split(200):
        temperature.observe(logits[rows], F.one_hot(labels[rows], 4).float())
    assert 1 / temperature.inverse.item() == pytest.approx(3, rel=0.25)


def test_the_scale_is_the_geometric_mean_but_never_below_one():
    scale = Scale(3)
    know(scale, 1, 0.5)
    for strong, mixed, expected in ((0.9, 2.5, 1.5), (2.0, 8.0, 4.0), (8.0, 0.5, 2.0), (0.5, 1.2, 1.0)):
        scale.strong.inverse.fill_(1 / strong)
        scale.mixed.inverse.fill_(1 / mixed)
        assert 1 / scale.inverse.item() == pytest.approx(expected)
    assert torch.equal(scale(torch.ones(2, 3)), torch.ones(2, 3) * scale.inverse)


def test_mixtures_of_labeled_features_bring_doubt_where_the_head_is_too_sharp():
    """A head that jumps from one class to the other is sure of halves, too: it needs a higher temperature."""
    labels = torch.arange(60) % 3
    weak = F.one_hot(labels, 3).float()
    found = []
    for factor in (4.0, 40.0):
        torch.manual_seed(0)
        scale = Scale(3, size=256)
        for _ in range(12):
            scale.observe(step_with(weak, weak, labels, factor), torch.arange(60), weak)
        found.append(1 / scale.mixed.inverse.item())
    assert found[1] == pytest.approx(10 * found[0], rel=0.1)
    assert found[1] > 4


def test_labeled_images_that_are_all_right_and_gentle_do_not_raise_the_confidence():
    labels = torch.arange(60) % 3
    weak = 0.2 * F.one_hot(labels, 3).float()
    scale = Scale(3, size=64)
    for _ in range(10):
        scale.observe(step_with(weak, weak, labels), torch.arange(60), weak)
    assert scale.inverse == 1


def test_labeled_images_that_are_all_wrong_meet_the_bound():
    scale, labels = Scale(3, size=64), torch.arange(60) % 3
    wrong = 4.0 * F.one_hot((labels + 1) % 3, 3)
    for _ in range(10):
        scale.observe(step_with(wrong, wrong, labels), torch.arange(60), wrong)
    assert scale.inverse.item() == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("right", "confidence", "power"),
    [(1.0, 0.6, 1), (0.8, 0.8, 0), (0.8, 0.6, 0.5), (0.2, 0.8, 0.75), (0.0, 0.5, 1), (1.0, 1.0, 0), (0.0, 0.0, 0)],
)
def test_the_temperature_counts_as_far_as_labeled_images_are_special(right, confidence, power):
    """Against numbers worked out by hand; a network that is sure of everything leaves no room, and no division by 0."""
    scale, plain = Scale(3), Scale(3, memorization_gate=False)
    for one in (scale, plain):
        know(one, right, confidence)
        one.strong.inverse.fill_(1 / 2)
        one.mixed.inverse.fill_(1 / 8)
    assert 1 / scale.inverse.item() == pytest.approx(4**power, rel=1e-4)
    assert 1 / plain.inverse.item() == pytest.approx(4)


def test_what_is_known_comes_from_the_images_shown():
    """Three of four labeled images right, and unlabeled ones judged by the averaged network, not the online one."""
    labels = torch.arange(60) % 3
    seen = torch.where((torch.arange(60) % 4 == 0)[:, None], torch.eye(3)[(labels + 1) % 3], torch.eye(3)[labels])
    unlabeled = torch.tensor([[0.3, 0.0, -0.1]]).repeat(40, 1)
    scale = Scale(3)
    scale.observe(step_with(seen, seen, labels, factor=5.0), torch.arange(60), unlabeled)
    sure = (5 * unlabeled[0]).softmax(0).max().item()
    assert scale.known["confidence"][:40].tolist() == pytest.approx([sure] * 40)
    assert scale.known["right"][:40].mean().item() == pytest.approx(0.75)
    assert scale.departure.item() == pytest.approx((0.75 - sure) / (1 - sure), rel=1e-4)
    assert Scale(3).inverse == 1


def test_unfilled_rows_do_not_matter():
    logits, labels = overconfident(40)
    small, large = Temperature(4, 40), Temperature(4, 400)
    for temperature in (small, large):
        for _ in range(12):
            temperature.memory.cursor.zero_()
            temperature.observe(logits, F.one_hot(labels, 4).float())
    assert small.inverse.item() == pytest.approx(large.inverse.item(), rel=1e-3)


def test_held_out_labels_decide_alone():
    """They may also raise the confidence, which no image that was trained on may do."""
    logits, truth = overconfident(600)
    scale, labels = Scale(4, held_out=True, size=600), torch.arange(60) % 4
    step = step_with(torch.eye(4)[labels], torch.eye(4)[labels], labels)

    def show(labels):
        for rows in torch.arange(600).split(60):
            views = {**step.batch.views, "held_out": logits[rows]}
            batch = step.batch._replace(views=views, held_out_y=labels[rows])
            scale.observe(replace(step, batch=batch), torch.arange(60), logits[rows])

    show(truth)
    assert 1 / scale.inverse.item() == pytest.approx(3, rel=0.25)
    show(logits.argmax(1))
    assert scale.inverse > 1


def test_a_method_without_strong_views_is_not_asked_about_them():
    """Strong views it never learned are all wrong here; on the weak ones it is right, so nothing calls for doubt."""
    labels = torch.arange(60) % 3
    weak, strong = 4.0 * torch.eye(3)[labels], 4.0 * torch.eye(3)[(labels + 1) % 3]
    found = {}
    for unlabeled in ("weak", "strong"):
        torch.manual_seed(0)
        scale, step = Scale(3, size=64), step_with(strong, weak, labels)
        views = {"labeled_strong": strong, unlabeled: weak}
        for _ in range(10):
            scale.observe(replace(step, batch=step.batch._replace(views=views)), torch.arange(60), weak)
        found[unlabeled] = scale.inverse.item()
    assert found["weak"] == 1
    assert found["strong"] < 0.5
