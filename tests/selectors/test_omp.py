"""The pursuit against scipy's non-negative least squares, brute force and known solutions."""

import itertools

import numpy as np
import pytest
import torch
from scipy.optimize import nnls

from vcc_infuse.selectors.gradmatch import Pursuit


def pursue(atoms, b, budget, ridge=0.0):
    return Pursuit(atoms.T @ atoms, atoms.T @ b, budget, ridge).run()


def residual(atoms, b, index, weights):
    return float((b - atoms[:, index] @ weights).norm())


def test_recovers_orthogonal_atoms():
    torch.manual_seed(0)
    atoms = torch.linalg.qr(torch.randn(20, 12, dtype=torch.float64))[0]
    b = 3 * atoms[:, 4] + 0.5 * atoms[:, 9] + 1 * atoms[:, 0]
    index, weights = pursue(atoms, b, 3)
    assert index.tolist() == [4, 0, 9]
    torch.testing.assert_close(weights, torch.tensor([3, 1, 0.5], dtype=torch.float64))
    assert len(pursue(atoms, b, 8)[0]) == 3  # nothing is left to explain


@pytest.mark.parametrize("ridge", [0.0, 0.7])
@pytest.mark.parametrize("seed", range(4))
def test_with_room_for_all_it_is_nonnegative_least_squares(seed, ridge):
    rng = np.random.default_rng(seed)
    atoms, b = rng.normal(size=(30, 15)), rng.normal(size=30)
    wide = np.vstack([atoms, np.sqrt(ridge) * np.eye(15)])
    expected, _ = nnls(wide, np.concatenate([b, np.zeros(15)]))
    index, weights = pursue(torch.from_numpy(atoms), torch.from_numpy(b), 15, ridge)
    found = np.zeros(15)
    found[index.numpy()] = weights.numpy()
    np.testing.assert_allclose(found, expected, atol=1e-8)


def test_weights_are_the_best_for_the_chosen_atoms_and_positive():
    rng = np.random.default_rng(1)
    atoms = np.abs(rng.normal(size=(10, 40)))
    b = atoms.sum(1)
    for budget in range(1, 10):
        index, weights = pursue(torch.from_numpy(atoms), torch.from_numpy(b), budget)
        assert len(index) == len(weights) == len(set(index.tolist())) <= budget
        assert (weights > 0).all()
        expected, _ = nnls(atoms[:, index.numpy()], b)
        np.testing.assert_allclose(weights.numpy(), expected, rtol=1e-6, atol=1e-9)


def test_residual_never_grows_with_the_budget():
    rng = np.random.default_rng(2)
    atoms, b = torch.from_numpy(rng.normal(size=(25, 60))), torch.from_numpy(rng.normal(size=25))
    sizes = [residual(atoms, b, *pursue(atoms, b, budget)) for budget in range(1, 26)]
    assert all(after <= before + 1e-9 for before, after in itertools.pairwise(sizes))
    assert sizes[-1] < 0.2 * sizes[0]


def test_first_pair_is_close_to_the_best_of_all_pairs():
    rng = np.random.default_rng(3)
    gaps = []
    for _ in range(10):
        atoms = rng.normal(size=(6, 8))
        b = atoms.sum(1)
        found = residual(torch.from_numpy(atoms), torch.from_numpy(b),
                         *pursue(torch.from_numpy(atoms), torch.from_numpy(b), 2))  # fmt: skip
        pairs = [nnls(atoms[:, pair], b)[1] for pair in itertools.combinations(range(8), 2)]
        assert found >= min(pairs) - 1e-9
        gaps.append((found - min(pairs)) / np.linalg.norm(b))
    assert np.mean(gaps) < 0.1


def test_repeated_and_empty_atoms_are_taken_once_or_never():
    atoms = torch.tensor([[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 2.0]], dtype=torch.float64)
    index, weights = pursue(atoms, torch.tensor([3.0, 4.0], dtype=torch.float64), 4)
    assert sorted(index.tolist()) == [0, 3]
    torch.testing.assert_close(weights[index.argsort()], torch.tensor([3.0, 2.0], dtype=torch.float64))
    assert len(pursue(torch.zeros(3, 2), torch.zeros(3), 2)[0]) == 0


def test_a_ridge_makes_weights_smaller():
    rng = np.random.default_rng(4)
    atoms = torch.from_numpy(np.abs(rng.normal(size=(10, 10))))
    totals = [float(pursue(atoms, atoms.sum(1), 10, ridge)[1].norm()) for ridge in (0.1, 10.0, 1000.0)]
    assert totals[0] > totals[1] > totals[2]


def test_importing_leaves_numpys_error_handling_alone():
    assert np.geterr() == {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"}
