"""When the core set is refreshed or resampled, what the batches draw from, and resuming inside an interval."""

import numpy as np
import pytest
import torch

from vcc_infuse.algorithms import FlexMatch
from vcc_infuse.data.batches import Batches
from vcc_infuse.inference.predictor import make_views
from vcc_infuse.selectors import EL2N, INFUSE, EarlyStop, GradMatch, Random, RandomOnline, RobustINFUSE
from vcc_infuse.training.coreset import CoresetScheduler


@pytest.fixture
def batches(data):
    return lambda: Batches(data, make_views(data.dataset), ("weak", "strong"), batch_size=20, unlabeled_batch_size=40)


def drawn(batches, start, steps=30):
    return {i for step in range(start, start + steps) for i in batches.at(step).pool_ids.tolist()}


@pytest.mark.parametrize(("selector", "due"), [
    (INFUSE(keep=0.3, every=20), [0, 20, 40]), (Random(keep=0.3, every=20), [0]),
    (RandomOnline(keep=0.3, every=7), [0, 7, 14, 21, 28, 35, 42, 49]), (EarlyStop(keep=0.3, every=10), []),
    (INFUSE(keep=1.0, every=10), []), (None, []),
])  # fmt: skip
def test_refreshes_are_due_every_so_many_steps(selector, due, make_pool):
    scheduler = CoresetScheduler(selector, make_pool().task, 0)
    assert [number for number in range(50) if scheduler.due(number)] == due


FIRST = [("random", 60, "first interval (random)"), ("full", 300, "first interval (full)"), ("score", 60, "INFUSE")]


@pytest.mark.parametrize(("first_interval", "count", "by"), FIRST)
def test_the_first_interval_trains_on_what_the_option_says(first_interval, count, by, make_pool, batches, truth):
    scheduler, source = (
        CoresetScheduler(INFUSE(keep=0.2, first_interval=first_interval), make_pool().task, 0),
        batches(),
    )
    selection, statistics = scheduler.refresh(make_pool(number=0), source, truth)
    assert (statistics["kept"], statistics["chosen_by"], statistics["overlap"]) == (count, by, None)
    assert drawn(source, 0) == set(selection.coreset.ids.tolist())
    _, statistics = scheduler.refresh(make_pool(number=10), source, truth)
    assert (statistics["kept"], statistics["chosen_by"], statistics["step"]) == (60, "INFUSE", 10)
    assert 0 <= statistics["precision_of_kept"] <= 1
    assert scheduler.seconds > 0


def test_core_set_weights_reach_the_batch(make_pool, batches):
    scheduler, source = CoresetScheduler(GradMatch(keep=0.2, first_interval="score"), make_pool().task, 0), batches()
    selection, _ = scheduler.refresh(make_pool(number=10), source)
    batch = source.at(11)
    expected = dict(zip(selection.coreset.ids.tolist(), selection.coreset.weights.tolist(), strict=True))
    assert batch.weights.tolist() == pytest.approx([expected[i] for i in batch.pool_ids.tolist()])
    assert batch.weights.std() > 0


def test_the_algorithm_counts_only_the_core_set(make_pool, batches):
    pool = make_pool(FlexMatch(), number=10)
    pool.algorithm.selected[:100] = 3
    scheduler = CoresetScheduler(INFUSE(keep=0.2), pool.task, 0)
    selection, _ = scheduler.refresh(pool, batches())
    inside = (selection.coreset.ids < 100).sum()
    assert pool.algorithm.counts[3] == inside
    assert pool.algorithm.counts.sum() == 60


def test_resuming_inside_an_interval(make_pool, batches, tmp_path):
    straight, source = CoresetScheduler(EL2N(keep=0.2), make_pool().task, 0), batches()
    for number in (0, 10, 20):
        straight.refresh(make_pool(number=number), source)
        if number == 10:
            torch.save(straight.state_dict(), tmp_path / "state.pt")
            middle = source.at(14).pool_ids
    again, fresh = CoresetScheduler(EL2N(keep=0.2), make_pool().task, 0), batches()
    again.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    again.resume(fresh)
    assert torch.equal(fresh.at(14).pool_ids, middle)
    again.refresh(make_pool(number=20), fresh)
    assert torch.equal(again.coreset.ids, straight.coreset.ids)
    assert torch.equal(fresh.at(25).pool_ids, source.at(25).pool_ids)
    np.testing.assert_array_equal(again.selector.selection_.rows.scores, straight.selector.selection_.rows.scores)


def test_the_users_selector_is_not_changed(make_pool, batches):
    mine = EL2N(keep=0.2, first_interval="score")
    CoresetScheduler(mine, make_pool().task, 0).refresh(make_pool(number=10), batches())
    assert mine.state_dict() == {}
    assert mine.selection_ is None


def run_steps(scheduler, make_pool, source, numbers):
    """What a trainer does before each step; returns the core sets by the step they start at."""
    found = {}
    for number in numbers:
        if scheduler.due(number):
            scheduler.refresh(make_pool(number=number), source)
        elif scheduler.resample_due(number):
            scheduler.resample(make_pool(number=number), source)
        else:
            continue
        found[number] = scheduler.coreset.ids.tolist()
    return found


def test_a_core_set_is_resampled_after_each_pass_with_the_same_scores(make_pool, batches):
    scheduler, source = (
        CoresetScheduler(RobustINFUSE(keep=0.3, every=10, resample_each_pass=True), make_pool().task, 0),
        batches(),
    )
    found = run_steps(scheduler, make_pool, source, range(20))  # 90 examples of 300 are three batches of 40
    assert list(found) == [0, 3, 6, 9, 10, 13, 16, 19]
    assert len({tuple(ids) for ids in found.values()}) == len(found)
    assert all(len(set(ids)) == 90 for ids in found.values())
    assert drawn(source, 19, 3) == set(found[19])
    rows = scheduler.selector.selection_.rows
    kinds = 2 * rows.labels + rows.selected
    counts = [np.bincount(kinds[found[number]], minlength=20).tolist() for number in (10, 13, 16, 19)]
    assert counts[0] == counts[1] == counts[2] == counts[3]
    harmful = np.flatnonzero(rows.selected & (rows.scores < 0))
    assert len(set(found[13]) & set(harmful)) == len(set(found[10]) & set(harmful))


@pytest.mark.parametrize(
    "options",
    [{}, {"resample_each_pass": True, "strategy": "top"}, {"resample_each_pass": True, "first_interval": "full"}],
)
def test_without_a_random_draw_nothing_is_resampled(options, make_pool, batches):
    scheduler = CoresetScheduler(RobustINFUSE(keep=0.3, every=10, **options), make_pool().task, 0)
    scheduler.refresh(make_pool(number=0), batches())
    assert not any(scheduler.resample_due(number) for number in range(1, 10))


def test_with_resampling_the_algorithm_counts_the_whole_pool(make_pool, batches):
    pool = make_pool(FlexMatch(), number=10)
    CoresetScheduler(RobustINFUSE(keep=0.2, resample_each_pass=True), pool.task, 0).refresh(pool, batches())
    assert pool.algorithm.counts.sum() == 300


@pytest.mark.parametrize("stop", [4, 14])
def test_resampling_continues_after_a_resume(stop, make_pool, batches, tmp_path):
    selector, task = RobustINFUSE(keep=0.3, every=10, resample_each_pass=True), make_pool().task
    straight = run_steps(CoresetScheduler(selector, task, 0), make_pool, batches(), range(20))
    cut, fresh = CoresetScheduler(selector, task, 0), CoresetScheduler(selector, task, 0)
    before = run_steps(cut, make_pool, batches(), range(stop))
    torch.save(cut.state_dict(), tmp_path / "state.pt")
    fresh.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    source = batches()
    fresh.resume(source)
    assert before | run_steps(fresh, make_pool, source, range(stop, 20)) == straight
