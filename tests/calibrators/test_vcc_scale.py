import pytest
import torch
import torch.nn.functional as F

from vcc_infuse.calibrators.scale import Scale, newton_step
from vcc_infuse.types import Batch, Outputs, Step


def overconfident(n: int = 2000, factor: float = 3.0) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    honest = 2 * torch.randn(n, 4, generator=g)
    return factor * honest, torch.multinomial(honest.softmax(1), 1, generator=g).squeeze(1)


def step_with(logits: torch.Tensor, labels: torch.Tensor, gather=lambda t: t) -> Step:
    batch = Batch(logits, labels, labels, {"labelled_strong": logits}, labels, labels)
    return Step(batch, lambda x: x, lambda x: Outputs(x, x), lambda *a: None, gather=gather)


def test_newton_finds_the_minimum_that_a_general_optimiser_finds():
    logits, labels = overconfident()
    beta = torch.tensor(1.0)
    for _ in range(12):
        beta = newton_step(beta, logits, labels)
    free = torch.tensor(1.0, requires_grad=True)
    optimiser = torch.optim.LBFGS([free], lr=0.1, max_iter=200)

    def loss():
        optimiser.zero_grad()
        value = F.cross_entropy(free * logits, labels)
        value.backward()
        return value

    optimiser.step(loss)
    assert beta.item() == pytest.approx(free.item(), rel=1e-3)
    assert 1 / beta.item() == pytest.approx(3, rel=0.15)


def test_scale_follows_the_labelled_examples_it_is_shown():
    scale = Scale(4, size=512)
    logits, labels = overconfident()
    for part in range(10):
        rows = torch.arange(200)
        scale.observe(step_with(logits[200 * part :][:200], labels[200 * part :][:200]), rows)
    assert 1 / scale.inverse.item() == pytest.approx(3, rel=0.25)
    assert torch.equal(scale(logits), logits * scale.inverse)


def test_labelled_images_that_are_all_right_do_not_raise_the_confidence():
    scale, labels = Scale(3, size=64), torch.arange(60) % 3
    for _ in range(10):
        scale.observe(step_with(4.0 * F.one_hot(labels, 3), labels), torch.arange(60))
    assert scale.inverse == 1


def test_labelled_images_that_are_all_wrong_meet_the_bound():
    scale, labels = Scale(3, size=64), torch.arange(60) % 3
    for _ in range(10):
        scale.observe(step_with(4.0 * F.one_hot((labels + 1) % 3, 3), labels), torch.arange(60))
    assert scale.inverse.item() == pytest.approx(0.05)


def test_unfilled_rows_do_not_matter():
    logits, labels = overconfident(40)
    small, large = Scale(4, size=40), Scale(4, size=400)
    for scale in (small, large):
        for _ in range(12):
            scale.memory.cursor.zero_()
            scale.observe(step_with(logits, labels), torch.arange(40))
    assert small.inverse.item() == pytest.approx(large.inverse.item(), rel=1e-3)
