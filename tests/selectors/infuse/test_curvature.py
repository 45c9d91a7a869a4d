"""The K-FAC factors against the Gauss-Newton matrix of autograd."""

import torch
import torch.nn.functional as F

from vcc_infuse.selectors.infuse.influence import GaussNewton


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
