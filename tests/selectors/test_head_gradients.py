"""Closed forms of the head's gradients against autograd, one example at a time."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from vcc_infuse.selectors.head_gradients import ExampleGradients, GroupGradients, alignment, mean_gradient
from vcc_infuse.selectors.infuse.influence import FeatureMixup, support_gradient
from vcc_infuse.selectors.infuse.infuse import influence_scores

N, C, D = 12, 5, 7


def flat(loss, head):
    weight, bias = torch.autograd.grad(loss, [head.weight, head.bias], retain_graph=True)
    return torch.cat([weight, bias[:, None]], 1)


@pytest.fixture
def problem():
    torch.manual_seed(3)
    head, features = nn.Linear(D, C), torch.randn(N, D)
    labels, weights = torch.randint(C, (N,)), torch.rand(N)
    weights[::4] = 0
    losses = F.cross_entropy(head(features), labels, reduction="none") * weights
    each = torch.stack([flat(loss, head) for loss in losses])
    probs = head(features).softmax(1).detach()
    errors = weights[:, None] * (probs - F.one_hot(labels, C))
    return head, features, labels, weights, probs, errors, each


def test_inner_products_sums_and_gram_equal_autograd(problem):
    _, features, _, _, _, errors, each = problem
    direction, atoms = torch.randn(C, D + 1), ExampleGradients(errors, features)
    expected = (each * direction).sum((1, 2))
    torch.testing.assert_close(alignment(direction, errors, features), expected)
    torch.testing.assert_close(atoms.against(direction), expected)
    torch.testing.assert_close(mean_gradient(errors, features), each.mean(0))
    rows, factors = torch.tensor([1, 5, 6]), torch.tensor([2.0, 0.5, 1.0])
    torch.testing.assert_close(atoms.total(rows, factors), (each[rows] * factors[:, None, None]).sum(0))
    torch.testing.assert_close(atoms.gram(), each.flatten(1) @ each.flatten(1).T)


def test_group_gradients_equal_the_mean_over_selected_members(problem):
    _, features, _, weights, _, errors, each = problem
    groups = [torch.tensor([0, 1, 2]), torch.tensor([3, 4, 5, 6, 7])]
    atoms = GroupGradients(errors, features, weights, groups)
    means = torch.stack([each[g].sum(0) / weights[g].sum() for g in groups])
    torch.testing.assert_close(atoms.gram(), means.flatten(1) @ means.flatten(1).T)
    direction = torch.randn(C, D + 1)
    torch.testing.assert_close(atoms.against(direction), (means * direction).sum((1, 2)))
    torch.testing.assert_close(atoms.total(torch.tensor([1]), torch.tensor([3.0])), 3 * means[1])


def test_influence_is_minus_the_inner_product_and_zero_without_weight(problem):
    _, features, labels, weights, probs, _, each = problem
    direction = torch.randn(C, D + 1)
    score = influence_scores(direction, features, probs, labels, weights)
    torch.testing.assert_close(score, -(each * direction).sum((1, 2)))
    assert (score[::4] == 0).all()
    soft = influence_scores(direction, features, probs, F.one_hot(labels, C).float(), weights)
    torch.testing.assert_close(soft, score)


def test_mixed_labels_sum_to_one_and_a_pair_of_one_class_keeps_its_label():
    mix = FeatureMixup(40, np.random.default_rng(0))
    labels = torch.arange(40) % 2
    mixed = mix(F.one_hot(labels, 2).float())
    torch.testing.assert_close(mixed.sum(1), torch.ones(40))
    same = labels == labels[mix.partner]
    assert 5 < int(same.sum()) < 35
    torch.testing.assert_close(mixed[same], F.one_hot(labels[same], 2).float())
    assert ((mixed[~same] > 0) & (mixed[~same] < 1)).all()


def test_support_gradient_equals_autograd_over_the_same_draws(problem):
    head, features, labels, *_ = problem
    direction, back = support_gradient(head, features, labels, 3, np.random.default_rng(5))
    rng, truth = np.random.default_rng(5), F.one_hot(labels, C).float()
    leaf, total = features.clone().requires_grad_(), torch.zeros(())
    for _ in range(3):
        partner, share = torch.from_numpy(rng.permutation(N)), torch.from_numpy(rng.random(N)).float()[:, None]
        mixed, target = (share * rows + (1 - share) * rows[partner] for rows in (leaf, truth))
        total = total + F.cross_entropy(head(mixed), target) / 3
    torch.testing.assert_close(direction, flat(total, head))
    torch.testing.assert_close(back, torch.autograd.grad(total, leaf)[0])


def test_more_mixup_draws_reduce_the_variance_of_the_direction(problem):
    head, features, labels, *_ = problem

    def spread(draws):
        seen = [support_gradient(head, features, labels, draws, np.random.default_rng(s))[0] for s in range(20)]
        return float(torch.stack(seen).std(0).norm())

    assert spread(16) < 0.5 * spread(1)
