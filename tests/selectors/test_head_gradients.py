"""Closed forms of the head's gradients against autograd, one example at a time."""

import pytest
import torch
import torch.nn.functional as F
from tests.helpers.heads import CLASSES, EXAMPLES, FEATURES, head_problem
from tests.helpers.heads import flat_gradient as flat

from vcc_infuse.selectors.pool import ExampleGradients, GroupGradients, alignment, mean_gradient

N, C, D = EXAMPLES, CLASSES, FEATURES


@pytest.fixture
def problem():
    head, features, labels, weights = head_problem()
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
