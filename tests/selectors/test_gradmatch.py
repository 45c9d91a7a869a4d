"""GradMatch: its weights, its match of the whole gradient, and defects of other implementations."""

import numpy as np
import pytest
import torch

from vcc_infuse.algorithms import FixMatch
from vcc_infuse.selectors import GradMatch, RandomOnline
from vcc_infuse.selectors.gradmatch import class_blocks, filled
from vcc_infuse.selectors.head_gradients import augmented
from vcc_infuse.selectors.scoring import example_columns


def per_example(pool):
    columns = pool.scan(lambda c: {"errors": c.errors, "features": c.outputs.features, **example_columns(c)})
    return torch.einsum("nc,nd->ncd", columns["errors"], augmented(columns["features"])).flatten(1), columns


@pytest.mark.parametrize("granularity", ["class", "batch"])
@pytest.mark.parametrize(("threshold", "budget"), [(0.6, 8), (0.6, 40), (0.6, 120), (0.97, 200), (1.0, 20)])
def test_budget_weights_and_alignment(granularity, threshold, budget, make_pool):
    selector = GradMatch(0.5, granularity=granularity)
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

    core = GradMatch(0.2, ridge=0.01).select(pool, 60)
    chance = [RandomOnline(0.2).select(make_pool(number=n), 60) for n in range(10)]
    mine = miss(core, core.weights)
    assert mine < 0.5 * np.mean([miss(c, c.weights) for c in chance])
    assert mine < miss(core, torch.ones(60))


def test_each_weight_belongs_to_its_own_example(make_pool, eval_mode):
    # One class in one block: the weights must solve the ridge problem for exactly these ids.
    pool = eval_mode(make_pool())
    gradients, columns = per_example(pool)
    core = GradMatch(0.2, ridge=0.3).select(pool, 60)
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


def test_ridge_evens_the_weights(make_pool):
    spread = [float(GradMatch(0.2, ridge=r).select(make_pool(), 60).weights.std()) for r in (0.01, 100.0)]
    assert spread[1] < spread[0]


def test_blocks_cover_each_selected_example_once():
    labels, selected = torch.arange(100) % 3, torch.arange(100) % 5 > 0
    blocks = class_blocks(labels, selected, 10, np.random.default_rng(0))
    assert sorted(torch.cat(blocks).tolist()) == selected.nonzero()[:, 0].tolist()
    assert max(map(len, blocks)) <= 10
    assert all(len(labels[block].unique()) == 1 for block in blocks)


def test_a_class_larger_than_a_block_is_still_matched(make_pool):
    core = GradMatch(0.2, block=5).select(make_pool(), 60)
    assert len(core.ids.unique()) == 60
    assert float(core.weights.mean()) == pytest.approx(1, abs=1e-5)


def test_fillers_have_average_weight_and_selected_ones_come_first():
    selected = np.array([1, 1, 1, 0, 0, 0], dtype=bool)
    core = filled(np.array([0]), np.array([7.0]), np.array([1, 2, 5, 3, 4]), selected, 4, np.random.default_rng(0))
    assert sorted(core.ids.tolist()) == [0, 1, 2, 5]
    assert core.ids[-1] == 5
    assert core.weights.tolist() == [1, 1, 1, 1]
