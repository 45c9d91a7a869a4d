"""GradMatch: its weights and its match of the whole gradient; the pursuit against scipy and known solutions."""

import itertools

import numpy as np
import pytest
import torch
from scipy.optimize import nnls

from vcc_infuse.algorithms import FixMatch
from vcc_infuse.selectors import GradMatch, RandomOnline
from vcc_infuse.selectors.base import example_columns, random_groups
from vcc_infuse.selectors.gradmatch import Pursuit, class_blocks, filled
from vcc_infuse.selectors.pool import augmented


def per_example(pool):
    columns = pool.scan(lambda c: {"errors": c.errors, "features": c.outputs.features, **example_columns(c)})
    return torch.einsum("nc,nd->ncd", columns["errors"], augmented(columns["features"])).flatten(1), columns


@pytest.mark.parametrize("granularity", ["class", "batch"])
@pytest.mark.parametrize(("threshold", "budget"), [(0.6, 8), (0.6, 40), (0.6, 120), (0.97, 200), (1.0, 20)])
def test_budget_weights_and_alignment(granularity, threshold, budget, make_pool):
    selector = GradMatch(keep=0.5, granularity=granularity)
    core = selector.select(make_pool(FixMatch(threshold=threshold)), budget)
    assert len(core.ids) == len(core.ids.unique()) == len(core.weights) == budget
    assert float(core.weights.mean()) == pytest.approx(1, abs=1e-5)
    assert (core.weights > 0).all()
    selected = selector.selection_.rows.selected
    assert selected[core.ids.numpy()].sum() == min(budget, selected.sum())


def test_weighted_subset_matches_the_whole_gradient_better_than_random_or_unweighted(make_pool, eval_mode):
    pool = eval_mode(make_pool())
    gradients, _ = per_example(pool)
    whole = gradients.sum(0)

    def miss(core, weights):
        found = weights @ gradients[core.ids]
        scale = (found @ whole) / (found @ found)  # the scale is free: weights have mean 1
        return float((whole - scale * found).norm() / whole.norm())

    core = GradMatch(keep=0.2, ridge=0.01).select(pool, 60)
    chance = [RandomOnline(keep=0.2).select(make_pool(number=n), 60) for n in range(10)]
    mine = miss(core, core.weights)
    assert mine < 0.5 * np.mean([miss(c, c.weights) for c in chance])
    assert mine < miss(core, torch.ones(60))


def test_each_weight_belongs_to_its_own_example(make_pool, eval_mode):
    # One class in one block: the weights must solve the ridge problem for exactly these ids.
    pool = eval_mode(make_pool())
    gradients, columns = per_example(pool)
    core = GradMatch(keep=0.2, ridge=0.3).select(pool, 60)
    weight = torch.zeros(300)
    weight[core.ids] = core.weights
    for label in range(10):
        members = ((columns["label"] == label) & (columns["weight"] > 0)).nonzero()[:, 0]
        chosen = members[weight[members] > 0]
        if len(chosen) < 2:
            continue
        g = gradients[members].double()
        ridge, a = 0.3 * g.square().sum(1).mean(), gradients[chosen].double()
        exact = torch.linalg.solve(a @ a.T + ridge * torch.eye(len(chosen)), a @ g.sum(0))
        if (exact <= 0).any():
            continue
        found = weight[chosen].double()
        torch.testing.assert_close(found / found.sum(), exact / exact.sum(), rtol=1e-3, atol=1e-4)


def test_the_members_of_a_batch_share_its_weight(make_pool, eval_mode):
    pool = eval_mode(make_pool())
    gradients, columns = per_example(pool)
    selector = GradMatch(keep=0.5, ridge=0.3, granularity="batch")
    selector.select(pool, 150)
    weight = torch.from_numpy(selector.selection_.rows.scores).double()
    groups = [group[columns["weight"][group] > 0] for group in random_groups(pool)]
    means = torch.stack([gradients[group].double().mean(0) for group in groups])
    sizes = torch.tensor([len(group) for group in groups], dtype=torch.float64)
    chosen = [number for number, group in enumerate(groups) if (weight[group] > 0).any()]
    assert len(set(sizes[chosen].tolist())) > 1
    assert sum(len(weight[groups[number]].unique()) > 1 for number in chosen) <= 1  # the budget may split the last
    found = torch.stack([weight[groups[number]].max() * sizes[number] for number in chosen])
    ridge, atoms = 0.3 * means.square().sum(1).mean(), means[chosen]
    exact = torch.linalg.solve(atoms @ atoms.T + ridge * torch.eye(len(chosen)), atoms @ (sizes @ means))
    torch.testing.assert_close(found, exact, rtol=1e-3, atol=1e-4)


def test_ridge_evens_the_weights(make_pool):
    spread = [float(GradMatch(keep=0.2, ridge=r).select(make_pool(), 60).weights.std()) for r in (0.01, 100.0)]
    assert spread[1] < spread[0]


def test_blocks_cover_each_selected_example_once():
    labels, selected = torch.arange(100) % 3, torch.arange(100) % 5 > 0
    blocks = class_blocks(labels, selected, 10, np.random.default_rng(0))
    assert sorted(torch.cat(blocks).tolist()) == selected.nonzero()[:, 0].tolist()
    assert max(map(len, blocks)) <= 10
    assert all(len(labels[block].unique()) == 1 for block in blocks)


def test_a_class_larger_than_a_block_is_still_matched(make_pool):
    core = GradMatch(keep=0.2, block=5).select(make_pool(), 60)
    assert len(core.ids.unique()) == 60
    assert float(core.weights.mean()) == pytest.approx(1, abs=1e-5)


def test_fillers_have_average_weight_and_selected_ones_come_first():
    selected = np.array([1, 1, 1, 0, 0, 0], dtype=bool)
    core = filled(np.array([0]), np.array([7.0]), np.array([1, 2, 5, 3, 4]), selected, 4, np.random.default_rng(0))
    assert sorted(core.ids.tolist()) == [0, 1, 2, 5]
    assert core.ids[-1] == 5
    assert core.weights.tolist() == [1, 1, 1, 1]


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
