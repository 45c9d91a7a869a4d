import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from tests.helpers.tiny import random_probs

from vcc_infuse.imbalance.darp import pruned, transport


def objective(x, q, w):
    return float((w[:, None] * x * (np.log(x) - np.log(q))).sum())


def generic_optimum(q, w, totals):
    """The same problem for a solver that knows nothing of its structure."""
    n, k = q.shape

    def value(flat):
        return objective(flat.reshape(n, k), q, w)

    def gradient(flat):
        return (w[:, None] * (np.log(flat.reshape(n, k)) - np.log(q) + 1)).ravel()

    rows = {"type": "eq", "fun": lambda flat: flat.reshape(n, k).sum(1) - 1}
    columns = {"type": "eq", "fun": lambda flat: (flat.reshape(n, k).sum(0) - totals)[:-1]}
    found = minimize(
        value, np.full(n * k, 1 / k), jac=gradient, method="SLSQP", bounds=[(1e-12, 1)] * (n * k),
        constraints=[rows, columns], options={"maxiter": 1000, "ftol": 1e-13},
    )  # fmt: skip
    assert found.success, found.message
    return found.fun


@pytest.mark.parametrize(
    ("rows", "classes", "scale", "seed"), [(6, 3, 1, 0), (8, 2, 2, 1), (7, 4, 2, 2), (10, 3, 3, 3)]
)
def test_optimum_of_a_generic_convex_solver(rows, classes, scale, seed):
    torch.manual_seed(seed)
    probs = random_probs(rows, classes, scale).double()
    totals = rows * torch.rand(classes).add(0.1).double().softmax(0)
    q = probs.numpy()
    w = 1 / -(q * np.log(q)).sum(1)
    found = transport(probs, totals)
    torch.testing.assert_close(found.sum(1), torch.ones(rows, dtype=torch.float64), rtol=0, atol=1e-9)
    torch.testing.assert_close(found.sum(0), totals, rtol=0, atol=1e-5)
    expected = generic_optimum(q, w, totals.numpy())
    assert objective(found.numpy(), q, w) == pytest.approx(expected, abs=1e-4)
    assert expected > 1e-2, "the totals must ask for a change"


def test_what_already_has_the_right_totals_stays():
    probs = random_probs(20, 4)
    torch.testing.assert_close(transport(probs, probs.sum(0)), probs)


def test_sure_rows_move_less_than_unsure_ones():
    probs = torch.tensor([[0.99, 0.01], [0.6, 0.4]]).repeat(4, 1)
    moved = (transport(probs, torch.tensor([4.0, 4.0])) - probs)[:2, 1]
    assert 0 < moved[0] < 0.2 * moved[1]


@pytest.mark.parametrize("scale", [2, 20, 100])
def test_a_large_long_tailed_pool_gets_its_totals(scale):
    """Balanced, ever surer predictions against a tail of 100: rows and columns both hold."""
    torch.manual_seed(0)
    totals = 100.0 ** -torch.linspace(0, 1, 10)
    totals *= 2000 / totals.sum()
    found = transport(pruned(random_probs(2000, 10, scale), totals, 2.0), totals)
    torch.testing.assert_close(found.sum(1), torch.ones(2000))
    torch.testing.assert_close(found.sum(0), totals, rtol=1e-3, atol=1e-2)


def test_pruning_follows_a_slow_loop():
    torch.manual_seed(0)
    probs, totals, alpha = random_probs(12, 3), torch.tensor([7.0, 3.4, 1.6]), 1.5
    expected = torch.zeros_like(probs)
    for c in range(3):
        best = sorted(range(12), key=lambda n: -probs[n, c])[: int(alpha * totals[c])]
        total = sum(probs[n, c] for n in best)
        for n in best:
            expected[n, c] = probs[n, c] * totals[c] / total
    expected += 1e-6
    expected /= expected.sum(1, keepdim=True)
    torch.testing.assert_close(pruned(probs, totals, alpha), expected, rtol=1e-4, atol=1e-5)
