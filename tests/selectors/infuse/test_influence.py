"""Influence and its direction against autograd and finite differences, the K-FAC factors against the true Hessian."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.helpers.heads import CLASSES, EXAMPLES, FEATURES, head_problem
from tests.helpers.heads import flat_gradient as flat

from vcc_infuse.selectors.infuse.influence import (
    FeatureMixup,
    GaussNewton,
    SupportGradient,
    influence,
    mixup_errors,
    support_direction,
)
from vcc_infuse.selectors.pool import mean_gradient

N, C, D = EXAMPLES, CLASSES, FEATURES


@pytest.fixture
def problem():
    return head_problem()


def parts(head):
    return head.weight, head.bias


def test_influence_is_minus_the_inner_product_of_gradients_and_zero_without_weight(problem):
    head, features, labels, weights = problem
    direction = torch.randn(C, D + 1)
    losses = F.cross_entropy(head(features), labels, reduction="none") * weights
    expected = torch.stack([-(flat(loss, head) * direction).sum() for loss in losses])
    logits = head(features).detach()
    found = influence(features, logits, targets=labels, direction=direction, weights=weights)
    torch.testing.assert_close(found, expected)
    assert (found[::4] == 0).all()
    soft = F.one_hot(labels, C).float()
    assert torch.equal(influence(features, logits, targets=soft, direction=direction, weights=weights), found)
    unweighted = influence(features, logits, targets=labels, direction=direction)
    torch.testing.assert_close(unweighted * weights, found)


def test_influence_is_the_change_of_the_support_loss_after_a_step(problem):
    head, features, labels, weights = (part.double() if part is not problem[2] else part for part in problem)
    support, y = torch.randn(6, D, dtype=torch.float64), torch.arange(6) % C
    direction = support_direction(support.float(), y, head=parts(head.float()), mixup_draws=0).double()
    found = influence(features, head.double()(features), targets=labels, direction=direction, weights=weights).detach()

    def support_loss(moved):
        return F.cross_entropy(F.linear(support, moved[:, :-1], moved[:, -1]), y).item()

    start, step = torch.cat([head.weight, head.bias[:, None]], 1).detach(), 1e-5
    for row in range(1, N, 2):
        loss = weights[row] * F.cross_entropy(head(features[row : row + 1]), labels[row : row + 1])
        gradient = flat(loss, head)
        change = (support_loss(start - step * gradient) - support_loss(start + step * gradient)) / (2 * step)
        assert found[row].item() == pytest.approx(change, rel=1e-4, abs=1e-8)


def test_without_mixup_the_direction_is_the_gradient_of_the_mean_loss(problem):
    head, features, labels, _ = problem
    found = support_direction(features, labels, head=parts(head), mixup_draws=0)
    torch.testing.assert_close(found, flat(F.cross_entropy(head(features), labels), head))
    without = support_direction(features, labels, head=(head.weight, None), mixup_draws=0)
    head.bias.data.zero_()
    torch.testing.assert_close(without, support_direction(features, labels, head=parts(head), mixup_draws=0))


def test_mixed_labels_sum_to_one_and_a_pair_of_one_class_keeps_its_label():
    mix = FeatureMixup.draw(40, np.random.default_rng(0))
    labels = torch.arange(40) % 2
    mixed = mix(F.one_hot(labels, 2).float())
    torch.testing.assert_close(mixed.sum(1), torch.ones(40))
    same = labels == labels[mix.partner]
    assert 5 < int(same.sum()) < 35
    torch.testing.assert_close(mixed[same], F.one_hot(labels[same], 2).float())
    assert ((mixed[~same] > 0) & (mixed[~same] < 1)).all()


def test_support_gradients_equal_autograd_over_the_same_draws(problem):
    head, features, labels, _ = problem
    errors = mixup_errors(features, labels, head=parts(head), mixup_draws=3, rng=np.random.default_rng(5))
    direction = mean_gradient(errors, features)
    in_features = SupportGradient(direction, errors, head.weight, iter(())).in_features()
    rng, truth = np.random.default_rng(5), F.one_hot(labels, C).float()
    leaf, total = features.clone().requires_grad_(), torch.zeros(())
    for _ in range(3):
        partner, share = torch.from_numpy(rng.permutation(N)), torch.from_numpy(rng.random(N)).float()[:, None]
        mixed, target = (share * rows + (1 - share) * rows[partner] for rows in (leaf, truth))
        total = total + F.cross_entropy(head(mixed), target) / 3
    torch.testing.assert_close(direction, flat(total, head))
    torch.testing.assert_close(in_features, torch.autograd.grad(total, leaf)[0])
    alone = support_direction(features, labels, head=parts(head), mixup_draws=3, rng=np.random.default_rng(5))
    assert torch.equal(alone, direction)


def mixup_expectation(head, features, labels):
    """The gradient of the Mixup loss in expectation: every pair equally often, λ by the trapezoidal rule."""
    shares, truth = torch.linspace(0, 1, 401), F.one_hot(labels, C).float()
    weights = torch.ones(401)
    weights[0] = weights[-1] = 0.5
    total = torch.zeros(())
    for i in range(len(labels)):
        for j in range(len(labels)):
            mixed, target = (shares[:, None] * r[i] + (1 - shares[:, None]) * r[j] for r in (features, truth))
            losses = F.cross_entropy(head(mixed), target, reduction="none")
            total = total + (weights * losses).sum() / weights.sum() / len(labels) ** 2
    return flat(total, head)


def test_random_parts_of_the_support_set_have_its_gradient_on_average(problem):
    head, features, labels, _ = problem
    expected, rng = mixup_expectation(head, features, labels), np.random.default_rng(0)
    found, without = torch.zeros_like(expected), torch.zeros_like(expected)
    for _ in range(4000):
        part = rng.choice(N, 3, replace=False)
        for total, population in ((found, N), (without, 0)):
            options = {"head": parts(head), "mixup_draws": 1, "rng": rng, "population": population}
            total += mean_gradient(mixup_errors(features[part], labels[part], **options), features[part]) / 4000
    assert (found - expected).norm() < 0.03 * expected.norm()
    # Three rows that are mixed with themselves a third of the time are not N rows that are so an N-th of the time.
    assert (without - expected).norm() > 2 * (found - expected).norm()


def test_more_mixup_draws_reduce_the_variance_of_the_direction(problem):
    head, features, labels, _ = problem

    def spread(draws):
        seen = [
            support_direction(features, labels, head=parts(head), mixup_draws=draws, rng=np.random.default_rng(seed))
            for seed in range(20)
        ]
        return float(torch.stack(seen).std(0).norm())

    assert spread(16) < 0.5 * spread(1)


def hessian_of_mean_loss(features, weights, head, labels):
    def loss(flat):
        theta = flat.view_as(head)
        logits = F.pad(features, (0, 1), value=1.0) @ theta.T
        return (weights * F.cross_entropy(logits, labels, reduction="none")).sum() / weights.sum()

    return torch.autograd.functional.hessian(loss, head.flatten())


def test_equals_the_true_hessian_where_the_factors_are_independent():
    # With one feature vector for all examples, E[S ⊗ A] = E[S] ⊗ A, so K-FAC is exact (and so is Gauss-Newton).
    torch.manual_seed(0)
    head, row = torch.randn(4, 4, dtype=torch.float64), torch.randn(3, dtype=torch.float64)
    features, weights = row.expand(6, 3), torch.rand(6, dtype=torch.float64)
    logits = F.pad(features, (0, 1), value=1.0) @ head.T
    factors = GaussNewton([(logits.softmax(1)[:2], features[:2], weights[:2]),
                           (logits.softmax(1)[2:], features[2:], weights[2:])])  # fmt: skip
    hessian = hessian_of_mean_loss(features, weights, head, torch.tensor([0, 1, 2, 3, 0, 1]))
    kron = torch.kron(factors.outputs / factors.count, factors.inputs / factors.count)
    torch.testing.assert_close(kron, hessian)


def test_solve_inverts_the_damped_factors():
    torch.manual_seed(1)
    probs, features, weights = torch.randn(30, 3).softmax(1), torch.randn(30, 4), torch.rand(30)
    factors, direction = GaussNewton([(probs, features, weights)]), torch.randn(3, 5)
    solved = factors.solve(direction, 0.1).double()
    rows = F.pad(features, (0, 1), value=1.0).double()
    inner = sum(w * torch.outer(r, r) for w, r in zip(weights.double(), rows, strict=True)) / weights.double().sum()
    outer = sum(w * (p.diag() - torch.outer(p, p)) for w, p in zip(weights.double(), probs.double(), strict=True))
    outer = outer / weights.double().sum()
    inner = inner + 0.1 * inner.trace() / 5 * torch.eye(5)
    outer = outer + 0.1 * outer.trace() / 3 * torch.eye(3)
    torch.testing.assert_close(outer @ solved @ inner, direction.double(), rtol=1e-5, atol=1e-5)


def test_without_selected_examples_the_direction_stays():
    direction = torch.randn(3, 5)
    factors = GaussNewton([(torch.full((4, 3), 1 / 3), torch.randn(4, 4), torch.zeros(4))])
    assert torch.equal(factors.solve(direction, 0.1), direction)
