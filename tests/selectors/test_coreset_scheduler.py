"""When the core set is renewed, what the batches draw from, and that an interval survives a restart."""

import numpy as np
import pytest
import torch

from vcc_infuse.algorithms.flexmatch import FlexMatch
from vcc_infuse.data.sampling import Batches
from vcc_infuse.predictor import make_views
from vcc_infuse.selectors import EL2N, INFUSE, CoresetScheduler, EarlyStop, GradMatch, Random, RandomOnline


@pytest.fixture
def batches(data):
    return lambda: Batches(data, make_views(data.dataset), ("weak", "strong"), batch=20, unlabeled=40)


def drawn(batches, start, steps=30):
    return {i for step in range(start, start + steps) for i in batches.at(step).pool_ids.tolist()}


@pytest.mark.parametrize(("selector", "due"), [
    (INFUSE(0.3, every=2), [0, 20, 40]), (Random(0.3, every=2), [0]), (RandomOnline(0.3, every=3), [0, 30]),
    (EarlyStop(0.3, every=1), []), (INFUSE(1.0, every=1), []), (None, []),
])  # fmt: skip
def test_due_every_so_many_epochs(selector, due, make_pool):
    refresher = CoresetScheduler(selector, make_pool().task, 10, 0)
    assert [number for number in range(50) if refresher.due(number)] == due


FIRST = [("random", 60, "warm-up (random)"), ("full", 300, "warm-up (full)"), ("score", 60, "INFUSE")]


@pytest.mark.parametrize(("warmup", "count", "by"), FIRST)
def test_first_interval_is_what_warmup_says(warmup, count, by, make_pool, batches, truth):
    refresher, source = CoresetScheduler(INFUSE(0.2, warmup=warmup), make_pool().task, 10, 0), batches()
    selection, figures = refresher.renew(make_pool(number=0), source, truth)
    assert (figures["kept"], figures["chosen_by"], figures["overlap"]) == (count, by, None)
    assert drawn(source, 0) == set(selection.coreset.ids.tolist())
    _, figures = refresher.renew(make_pool(number=10), source, truth)
    assert (figures["kept"], figures["chosen_by"], figures["step"]) == (60, "INFUSE", 10)
    assert 0 <= figures["precision_of_kept"] <= 1
    assert refresher.seconds > 0


def test_weights_reach_the_batch(make_pool, batches):
    refresher, source = CoresetScheduler(GradMatch(0.2, warmup="score"), make_pool().task, 10, 0), batches()
    selection, _ = refresher.renew(make_pool(number=10), source)
    batch = source.at(11)
    expected = dict(zip(selection.coreset.ids.tolist(), selection.coreset.weights.tolist(), strict=True))
    assert batch.weights.tolist() == pytest.approx([expected[i] for i in batch.pool_ids.tolist()])
    assert batch.weights.std() > 0


def test_counts_of_the_algorithm_follow_the_core_set(make_pool, batches):
    pool = make_pool(FlexMatch(), number=10)
    pool.algorithm.selected[:100] = 3
    refresher = CoresetScheduler(INFUSE(0.2), pool.task, 10, 0)
    selection, _ = refresher.renew(pool, batches())
    inside = (selection.coreset.ids < 100).sum()
    assert pool.algorithm.counts[3] == inside
    assert pool.algorithm.counts.sum() == 60


def test_restart_in_the_middle_of_an_interval(make_pool, batches, tmp_path):
    straight, source = CoresetScheduler(EL2N(0.2), make_pool().task, 10, 0), batches()
    for number in (0, 10, 20):
        straight.renew(make_pool(number=number), source)
        if number == 10:
            torch.save(straight.state_dict(), tmp_path / "state.pt")
            middle = source.at(14).pool_ids
    again, fresh = CoresetScheduler(EL2N(0.2), make_pool().task, 10, 0), batches()
    again.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    again.resume(fresh)
    assert torch.equal(fresh.at(14).pool_ids, middle)
    again.renew(make_pool(number=20), fresh)
    assert torch.equal(again.coreset.ids, straight.coreset.ids)
    assert torch.equal(fresh.at(25).pool_ids, source.at(25).pool_ids)
    np.testing.assert_array_equal(again.selector.selection_.rows.scores, straight.selector.selection_.rows.scores)


def test_the_users_selector_is_left_alone(make_pool, batches):
    mine = EL2N(0.2, warmup="score")
    CoresetScheduler(mine, make_pool().task, 10, 0).renew(make_pool(number=10), batches())
    assert mine.state_dict() == {}
    assert mine.selection_ is None


def walk(refresher, make_pool, source, numbers):
    """What a trainer does before each step; the core sets by the step they begin at."""
    found = {}
    for number in numbers:
        if refresher.due(number):
            refresher.renew(make_pool(number=number), source)
        elif refresher.passed(number):
            refresher.redraw(make_pool(number=number), source)
        else:
            continue
        found[number] = refresher.coreset.ids.tolist()
    return found


def test_a_set_is_drawn_anew_after_each_pass_by_the_same_scores(make_pool, batches):
    refresher, source = CoresetScheduler(INFUSE(0.3, every=1, redraw=True), make_pool().task, 10, 0), batches()
    found = walk(refresher, make_pool, source, range(20))  # 90 examples of 300 are three batches of 40
    assert list(found) == [0, 3, 6, 9, 10, 13, 16, 19]
    assert len({tuple(ids) for ids in found.values()}) == len(found)
    assert all(len(set(ids)) == 90 for ids in found.values())
    assert drawn(source, 19, 3) == set(found[19])
    rows = refresher.selector.selection_.rows
    kinds = 2 * rows.labels + rows.selected
    counts = [np.bincount(kinds[found[number]], minlength=20).tolist() for number in (10, 13, 16, 19)]
    assert counts[0] == counts[1] == counts[2] == counts[3]
    harmful = np.flatnonzero(rows.selected & (rows.scores < 0))
    assert len(set(found[13]) & set(harmful)) == len(set(found[10]) & set(harmful))


@pytest.mark.parametrize("options", [{}, {"redraw": True, "take": "best"}, {"redraw": True, "warmup": "full"}])
def test_nothing_is_drawn_anew_without_a_draw(options, make_pool, batches):
    refresher = CoresetScheduler(INFUSE(0.3, every=1, **options), make_pool().task, 10, 0)
    refresher.renew(make_pool(number=0), batches())
    assert not any(refresher.passed(number) for number in range(1, 10))


def test_where_any_example_may_come_next_the_algorithm_counts_all(make_pool, batches):
    pool = make_pool(FlexMatch(), number=10)
    CoresetScheduler(INFUSE(0.2, redraw=True), pool.task, 10, 0).renew(pool, batches())
    assert pool.algorithm.counts.sum() == 300


@pytest.mark.parametrize("stop", [4, 14])
def test_draws_go_on_after_a_restart(stop, make_pool, batches, tmp_path):
    selector, task = INFUSE(0.3, every=1, redraw=True), make_pool().task
    straight = walk(CoresetScheduler(selector, task, 10, 0), make_pool, batches(), range(20))
    cut, fresh = CoresetScheduler(selector, task, 10, 0), CoresetScheduler(selector, task, 10, 0)
    before = walk(cut, make_pool, batches(), range(stop))
    torch.save(cut.state_dict(), tmp_path / "state.pt")
    fresh.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    source = batches()
    fresh.resume(source)
    assert before | walk(fresh, make_pool, source, range(stop, 20)) == straight
