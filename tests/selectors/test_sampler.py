"""CoresetSampler in a DataLoader, and what it chooses from scores, functions and selectors."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from vcc_infuse.errors import OptionError, UserError
from vcc_infuse.selectors import EL2N, INFUSE, CoresetSampler, RobustINFUSE

SIZE = 40


def scores(seed=0):
    return np.random.default_rng(seed).normal(size=SIZE)


def top(values, count):
    return set(np.argsort(-values)[:count].tolist())


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_sees_each_example_of_the_core_set_once_per_epoch(workers):
    sampler = CoresetSampler(SIZE, keep=0.3)
    loader = DataLoader(TensorDataset(torch.arange(SIZE)), batch_size=5, sampler=sampler, num_workers=workers)
    sampler.update(scores())
    assert (len(sampler), len(loader)) == (12, 3)
    seen = [torch.cat([ids for (ids,) in loader]).tolist() for _ in range(2)]
    assert set(seen[0]) == set(seen[1]) == top(scores(), 12)
    assert seen[0] != seen[1]
    assert len(seen[0]) == 12
    sampler.update(scores(1))
    assert {int(i) for (ids,) in loader for i in ids} == top(scores(1), 12)


def test_the_order_is_a_function_of_seed_and_epoch():
    first, again, other = (CoresetSampler(SIZE, keep=0.3, seed=seed) for seed in (1, 1, 2))
    orders = [list(first) for _ in range(3)]
    assert orders == [list(again) for _ in range(3)]
    assert list(other) != orders[0]
    first.set_epoch(1)
    assert list(first) == orders[1]


def test_a_pass_ends_with_the_core_set_it_began_with():
    sampler = CoresetSampler(SIZE, keep=0.3)
    sampler.update(scores())
    running = iter(sampler)
    seen = [next(running)]
    sampler.update(scores(1))
    assert {*seen, *running} == top(scores(), 12)


def test_until_the_first_refresh_a_random_subset_or_the_whole_pool_is_drawn():
    assert len(set(CoresetSampler(SIZE, keep=0.3))) == 12
    assert set(CoresetSampler(SIZE, keep=0.3)) != set(CoresetSampler(SIZE, keep=0.3, seed=1))
    assert set(CoresetSampler(SIZE, selector=INFUSE(keep=0.3, first_interval="full"))) == set(range(SIZE))


def test_a_function_may_select():
    sampler = CoresetSampler(SIZE, selector=lambda values, sign: sign * values, keep=0.25)
    sampler.refresh(scores(), sign=-1)
    assert set(sampler) == top(-scores(), 10)


def test_infuse_selects_from_features():
    torch.manual_seed(0)
    head, pool, labeled = nn.Linear(6, 4), torch.randn(SIZE, 6), torch.randn(8, 6)
    inputs = {"support_features": labeled, "support_labels": torch.arange(8) % 4, "head": head}
    sampler = CoresetSampler(SIZE, selector=INFUSE(keep=0.2))
    sampler.refresh(pool, head(pool), **inputs)
    assert set(sampler) == top(INFUSE().score(pool, head(pool), **inputs).numpy(), 8)


def test_robust_infuse_draws_from_the_harmless_and_anew_in_each_epoch():
    sampler = CoresetSampler(SIZE, selector=RobustINFUSE(keep=0.2, quota="none"))
    drawn = []
    for _ in range(3):
        sampler.update(scores())
        drawn.append(frozenset(sampler))
    assert all((scores()[list(ids)] >= 0).all() for ids in drawn)
    assert len(set(drawn)) == 3


def test_a_quota_needs_labels_and_confidence_breaks_ties():
    labels = np.arange(SIZE) // 20
    sampler = CoresetSampler(SIZE, selector=RobustINFUSE(keep=0.2, strategy="top", quota="equal"))
    sampler.update(np.arange(SIZE, dtype=float), labels=labels)
    assert set(sampler) == {16, 17, 18, 19, 36, 37, 38, 39}
    sampler = CoresetSampler(SIZE, keep=0.05)
    sampler.update(np.zeros(SIZE), confidence=-np.abs(np.arange(SIZE) - 30.4))
    assert set(sampler) == {30, 31}


def test_examples_without_weight_come_last():
    values = np.full(SIZE, -np.inf)
    values[[3, 8]] = [-5, np.nan]
    sampler = CoresetSampler(SIZE, keep=0.1)
    sampler.update(values)
    assert sampler.ids.tolist() == [3, 8, 0, 1]


def test_mistakes_cost_one_line():
    with pytest.raises(UserError, match=r"^scores must have the shape \(40,\) of the pool, got \(3,\)$"):
        CoresetSampler(SIZE).update([1, 2, 3])
    with pytest.raises(UserError, match=r"INFUSE\(keep=0.3\)$"):
        CoresetSampler(SIZE, selector=INFUSE(), keep=0.3)
    for sampler in (CoresetSampler(SIZE), CoresetSampler(SIZE, selector=EL2N())):
        with pytest.raises(UserError, match="or give scores to update$"):
            sampler.refresh()
    with pytest.raises(OptionError, match="^pool_size must"):
        CoresetSampler(0)
    with pytest.raises(OptionError, match="^keep must"):
        CoresetSampler(SIZE, keep=2)
