"""When the core set is renewed, what the batches draw from, and that an interval survives a restart."""

import numpy as np
import pytest
import torch

from vcc_infuse.algorithms.flexmatch import FlexMatch
from vcc_infuse.data.batches import Batches
from vcc_infuse.predictor import make_views
from vcc_infuse.selectors import EL2N, INFUSE, EarlyStop, GradMatch, Random, RandomOnline, Refresher


@pytest.fixture
def batches(data):
    return lambda: Batches(data, make_views(data.dataset), ("weak", "strong"), batch=20, unlabelled=40)


def drawn(batches, start, steps=30):
    return {i for step in range(start, start + steps) for i in batches.at(step).pool_ids.tolist()}


@pytest.mark.parametrize(("selector", "due"), [
    (INFUSE(0.3, every=2), [0, 20, 40]), (Random(0.3, every=2), [0]), (RandomOnline(0.3, every=3), [0, 30]),
    (EarlyStop(0.3, every=1), []), (INFUSE(1.0, every=1), []), (None, []),
])  # fmt: skip
def test_due_every_so_many_epochs(selector, due, make_pool):
    refresher = Refresher(selector, make_pool().task, 10, 0)
    assert [number for number in range(50) if refresher.due(number)] == due


FIRST = [("random", 60, "warm-up (random)"), ("full", 300, "warm-up (full)"), ("score", 60, "INFUSE")]


@pytest.mark.parametrize(("warmup", "count", "by"), FIRST)
def test_first_interval_is_what_warmup_says(warmup, count, by, make_pool, batches, truth):
    refresher, source = Refresher(INFUSE(0.2, warmup=warmup), make_pool().task, 10, 0), batches()
    selection, figures = refresher.renew(make_pool(number=0), source, truth)
    assert (figures["kept"], figures["chosen_by"], figures["overlap"]) == (count, by, None)
    assert drawn(source, 0) == set(selection.coreset.ids.tolist())
    _, figures = refresher.renew(make_pool(number=10), source, truth)
    assert (figures["kept"], figures["chosen_by"], figures["step"]) == (60, "INFUSE", 10)
    assert 0 <= figures["precision_of_kept"] <= 1
    assert refresher.seconds > 0


def test_weights_reach_the_batch(make_pool, batches):
    refresher, source = Refresher(GradMatch(0.2, warmup="score"), make_pool().task, 10, 0), batches()
    selection, _ = refresher.renew(make_pool(number=10), source)
    batch = source.at(11)
    expected = dict(zip(selection.coreset.ids.tolist(), selection.coreset.weights.tolist(), strict=True))
    assert batch.weights.tolist() == pytest.approx([expected[i] for i in batch.pool_ids.tolist()])
    assert batch.weights.std() > 0


def test_counts_of_the_algorithm_follow_the_core_set(make_pool, batches):
    pool = make_pool(FlexMatch(), number=10)
    pool.algorithm.selected[:100] = 3
    refresher = Refresher(INFUSE(0.2), pool.task, 10, 0)
    selection, _ = refresher.renew(pool, batches())
    inside = (selection.coreset.ids < 100).sum()
    assert pool.algorithm.counts[3] == inside
    assert pool.algorithm.counts.sum() == 60


def test_restart_in_the_middle_of_an_interval(make_pool, batches, tmp_path):
    straight, source = Refresher(EL2N(0.2), make_pool().task, 10, 0), batches()
    for number in (0, 10, 20):
        straight.renew(make_pool(number=number), source)
        if number == 10:
            torch.save(straight.state_dict(), tmp_path / "state.pt")
            middle = source.at(14).pool_ids
    again, fresh = Refresher(EL2N(0.2), make_pool().task, 10, 0), batches()
    again.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    again.resume(fresh)
    assert torch.equal(fresh.at(14).pool_ids, middle)
    again.renew(make_pool(number=20), fresh)
    assert torch.equal(again.coreset.ids, straight.coreset.ids)
    assert torch.equal(fresh.at(25).pool_ids, source.at(25).pool_ids)
    np.testing.assert_array_equal(again.selector.selection_.rows.scores, straight.selector.selection_.rows.scores)


def test_the_users_selector_is_left_alone(make_pool, batches):
    mine = EL2N(0.2, warmup="score")
    Refresher(mine, make_pool().task, 10, 0).renew(make_pool(number=10), batches())
    assert mine.state_dict() == {}
    assert mine.selection_ is None
