import copy
import math

import pytest
import torch

from tests.helpers import slow
from tests.helpers.tiny import buffers, make_step, run, same
from vcc_infuse.algorithms.vat import VAT, divergence, log_softmax, normalized
from vcc_infuse.models import Classifier, SmallConv


@pytest.fixture
def step():
    step = make_step(VAT(), ratio=1, number=20)
    step.batch = step.batch._replace(weights=torch.tensor([0.0, 0.5, 1.0, 2.5]))
    with torch.no_grad():
        step.model.head.weight.mul_(3)  # confident predictions
    return step


def kl(target, probs):
    return sum(t * math.log(t / p) for t, p in zip(target, probs, strict=True))


def whole_divergence(model, images, moved):
    """Σ KL over the batch, by a slow loop."""
    pairs = zip(slow.predictions(model, images), slow.predictions(model, moved), strict=True)
    return sum(kl(before, after) for before, after in pairs)


def cosines(one, other):
    return torch.cosine_similarity(one.double().flatten(1), other.double().flatten(1))


def test_divergence_equals_the_slow_loop():
    torch.manual_seed(0)
    target, probs = torch.randn(5, 3).softmax(1), torch.randn(5, 3).softmax(1)
    expected = [kl(t, p) for t, p in zip(target.tolist(), probs.tolist(), strict=True)]
    torch.testing.assert_close(divergence(target.log(), probs.log()), torch.tensor(expected))


def test_the_direction_is_that_of_finite_differences(step):
    images, model = step.batch.views["weak"], copy.deepcopy(step.model).double()
    torch.manual_seed(5)
    trial = images.double() + 0.01 * normalized(torch.randn_like(images)).double()
    numeric = torch.zeros_like(trial)
    for i in range(images.numel()):
        bump = torch.zeros_like(trial)
        bump.view(-1)[i] = 1e-6
        rise = whole_divergence(model, images.double(), trial + bump)
        numeric.view(-1)[i] = (rise - whole_divergence(model, images.double(), trial - bump)) / 2e-6
    torch.manual_seed(5)
    found = VAT(epsilon=6).adversarial_perturbation(step.model, images, log_softmax(step.model, images).detach())
    assert cosines(found, numeric).min() > 0.99
    torch.testing.assert_close(found.norm(dim=1), torch.full((4,), 6.0))


def test_no_random_direction_is_worse(step):
    """In eval mode examples are independent, and enough power iterations find the worst direction of each."""
    model, images = step.model.eval(), step.batch.views["weak"]
    precise, target = copy.deepcopy(model).double(), log_softmax(model, images).detach()
    before = slow.predictions(precise, images.double())

    def moved(change):
        after = slow.predictions(precise, images.double() + change.double())
        return torch.tensor([kl(*pair) for pair in zip(before, after, strict=True)])

    random = torch.stack([moved(0.01 * normalized(torch.randn_like(images))) for _ in range(100)])
    methods = (VAT(epsilon=0.01, n_power_iterations=n) for n in (1, 30))
    once, often = (method.adversarial_perturbation(model, images, target) for method in methods)
    assert (moved(often) > 0.98 * random.amax(0)).all()
    assert (moved(once) > 2 * random.mean(0)).all()


def test_the_direction_survives_float32():
    """With the paper's xi of 1e-6, float32 finds little more than rounding errors."""
    torch.manual_seed(0)
    model = Classifier.build(SmallConv(width=4), (1, 8, 8), 3)
    images = torch.randn(16, 1, 8, 8)
    precise = copy.deepcopy(model).double()
    torch.manual_seed(1)
    trial = (1e-6 * normalized(torch.randn_like(images)).double()).requires_grad_()
    target = precise(images.double()).logits.log_softmax(1).detach()
    moved = precise(images.double() + trial).logits.log_softmax(1)
    (exact,) = torch.autograd.grad((target.exp() * (target - moved)).sum(), trial)
    torch.manual_seed(1)
    found = VAT().adversarial_perturbation(model, images, log_softmax(model, images).detach())
    assert cosines(found, exact).mean() > 0.95
    paper = VAT(xi=1e-6).adversarial_perturbation(model, images, log_softmax(model, images).detach())
    assert cosines(paper, exact).mean() < 0.8


def test_losses_equal_the_slow_loop(step):
    algorithm, images = VAT(weight=2, rampup_fraction=0.4, epsilon=1.5, entropy=0.06), step.batch.views["weak"]
    before, x = slow.predictions(step.model, images), slow.predictions(step.model, step.batch.x)
    twin = copy.deepcopy(step.model)
    torch.manual_seed(3)
    change = algorithm.adversarial_perturbation(twin, images, log_softmax(twin, images).detach())
    after = slow.predictions(step.model, images + change)
    torch.manual_seed(3)
    losses = run(algorithm, step)
    rows = list(zip(step.batch.weights.tolist(), before, after, strict=True))
    adversarial = slow.mean([w * kl(b, a) for w, b, a in rows])
    entropy = slow.mean([w * slow.cross_entropy(b, b) for w, b, _ in rows])
    truth = [slow.cross_entropy(slow.one_hot(y), p) for y, p in zip(step.batch.y.tolist(), x, strict=True)]
    assert losses["adversarial"].item() == pytest.approx(2 * 0.5 * adversarial, rel=1e-3)
    assert losses["entropy"].item() == pytest.approx(0.06 * entropy, rel=1e-4)
    assert losses["labeled"].item() == pytest.approx(slow.mean(truth), rel=1e-5)


def test_the_target_is_fixed_and_the_entropy_is_not(step):
    algorithm, images, twin = VAT(rampup_fraction=0), step.batch.views["weak"], copy.deepcopy(step.model)
    torch.manual_seed(3)
    change = algorithm.adversarial_perturbation(twin, images, log_softmax(twin, images).detach())
    target = torch.tensor(slow.predictions(twin, images))
    probs, moved = twin(images).logits.softmax(1), twin(images + change).logits.softmax(1)
    weights = step.batch.weights[:, None]
    expected = {
        "adversarial": slow.gradients(-(weights * target * moved.log()).sum() / 4, twin),
        "entropy": slow.gradients(-0.06 * (weights * probs * probs.log()).sum() / 4, twin),
    }
    torch.manual_seed(3)
    losses = run(algorithm, step)
    for term, wanted in expected.items():
        found = slow.gradients(losses[term], step.model)
        for name, gradient in wanted.items():
            torch.testing.assert_close(found[name], gradient, rtol=2e-3, atol=1e-5)


def test_the_search_gives_parameters_no_gradient(step):
    step.model.head.bias.grad = torch.ones(3)
    run(VAT(n_power_iterations=2), step)
    assert torch.equal(step.model.head.bias.grad, torch.ones(3))
    assert all(p.grad is None for name, p in step.model.named_parameters() if name != "head.bias")


def test_only_labeled_images_update_the_statistics(step):
    twin = copy.deepcopy(step.model)
    twin(step.batch.x)
    run(VAT(), step)
    assert same(buffers(step.model), buffers(twin))


def test_the_search_runs_in_float32_under_autocast(step):
    def adversarial(enabled):
        torch.manual_seed(3)
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            return run(VAT(), step)["adversarial"]

    assert torch.equal(adversarial(True), adversarial(False))


def test_a_zero_vector_stays_zero():
    vectors = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    torch.testing.assert_close(normalized(vectors), torch.tensor([[0.6, 0.8], [0.0, 0.0]]))
