"""EL2N and the controls, and what all selectors promise about steps, budgets and intervals."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from vcc_infuse.algorithms import FixMatch
from vcc_infuse.errors import UserError
from vcc_infuse.selectors import EL2N, INFUSE, RETRIEVE, EarlyStop, FullShort, GradMatch, Random, RandomOnline, Selector
from vcc_infuse.types import Task

KINDS = [INFUSE, RETRIEVE, GradMatch, EL2N, Random, RandomOnline, EarlyStop, FullShort]


@pytest.mark.parametrize("kind", KINDS)
def test_contract(kind, make_pool):
    selector = kind(keep=0.25, every=3)
    again = rebuild(describe(selector), Selector)
    assert vars(again).keys() == vars(selector).keys()
    assert (again.keep, again.every, again.warmup) == (0.25, 3, selector.warmup)
    pool = make_pool()
    core = selector.select(pool, selector.budget(pool.size))
    size = 75 if selector.restricts else 300
    assert len(core.ids) == len(core.ids.unique()) == size
    assert core.ids.dtype == torch.long
    assert float(core.weights.mean()) == pytest.approx(1, abs=1e-5)
    assert selector.steps(1000) == 250
    assert selector.schedule_steps(1000) == (1000 if kind is EarlyStop else 250)
    assert selector.steps(1) == 1
    assert selector.static == (kind is Random)
    assert all(isinstance(v, torch.Tensor) for v in selector.state_dict().values())
    with pytest.raises(UserError, match=r"--selector\.keep"):
        selector.select(pool, 301)
    with pytest.raises(UserError, match=r"--selector\.keep"):
        kind(keep=0)


@pytest.mark.parametrize("kind", KINDS)
def test_keeping_everything_selects_nothing(kind, make_pool):
    selector = kind(keep=1)
    assert not selector.active
    assert selector.steps(1234) == selector.schedule_steps(1234) == 1234
    core = selector.select(make_pool(), selector.budget(300))
    assert core.ids.tolist() == list(range(300))
    assert (core.weights == 1).all()


def sizes(pool, steps, epochs, batch=64, unlabeled=448):
    return Task(10, 40, pool, torch.full((10,), 4), steps, -(-steps // epochs), batch, unlabeled)


@pytest.mark.parametrize("every", [None, 0])
def test_interval_is_the_papers_where_the_run_is_long(every):
    paper = sizes(50_000, round(0.4 * 2**20), 1024)
    assert INFUSE(0.4, every).interval(paper, 1024) == 40 * paper.epoch
    assert INFUSE(0.4, every=7).interval(paper, 1024) == 7 * paper.epoch


def looking(pool, steps, batch, unlabeled):
    """Shares of a run spent on all looks at the pool, and how many they are, in forward passes counted by hand."""
    task = sizes(pool, steps, 24, batch, unlabeled)
    looks = len(range(0, steps, INFUSE(0.4).interval(task, 24))) - 1  # the first core set is drawn blindly
    step = 3 * (batch + unlabeled) + unlabeled  # labeled and strong views forward and backward, weak views forward
    return looks * 2 * pool / (steps * step), looks


@pytest.mark.parametrize("steps", [600, 2400, 10_000])
@pytest.mark.parametrize("pool", [500, 1437, 3000])
def test_a_short_run_looks_as_often_as_it_can_afford(pool, steps):
    cost, looks = looking(pool, steps, 32, 160)
    assert cost <= 0.05
    assert cost > 0.025 or looks == 23  # 24 epochs: the paper looks no more often


@pytest.mark.parametrize("steps", [3, 60, 240])
def test_a_run_that_cannot_afford_it_looks_once_halfway(steps):
    task = sizes(60_000, steps, 3, 32, 160)
    assert INFUSE(0.4).interval(task, 3) == -(-steps // 2)


def test_a_run_of_one_step_has_an_interval():
    assert INFUSE(0.4).interval(sizes(1437, 1, 1), 1) == 1
    assert INFUSE(0.4, every=1).interval(sizes(1437, 240, 24), 24) == 10


def test_warmup_says_what_the_first_interval_trains_on():
    first = INFUSE(0.1).begin(300, 30, seed=1)
    assert len(first.ids.unique()) == 30
    assert torch.equal(first.ids, INFUSE(0.1).begin(300, 30, seed=1).ids)
    assert not torch.equal(first.ids, INFUSE(0.1).begin(300, 30, seed=2).ids)
    assert INFUSE(0.1, warmup="full").begin(300, 30, seed=1) is None
    assert Random(0.1).warmup == "score"


def test_random_keeps_its_subset_and_random_online_changes_it(make_pool):
    pools = [make_pool(number=n) for n in (0, 10)]
    static = [set(Random(0.2).select(pool, 60).ids.tolist()) for pool in pools]
    online = [set(RandomOnline(0.2).select(pool, 60).ids.tolist()) for pool in pools]
    assert static[0] == static[1]
    assert len(online[0] & online[1]) < 30


def test_random_online_reaches_every_example(make_pool):
    counts = np.zeros(300)
    for number in range(60):
        counts[RandomOnline(0.2).select(make_pool(number=number), 60).ids.numpy()] += 1
    assert counts.min() > 0
    assert counts.mean() == 12
    assert counts.std() == pytest.approx((60 * 0.2 * 0.8) ** 0.5, rel=0.3)


def test_el2n_is_the_strong_views_distance_to_the_weak_views_label(make_pool, quiet):
    pool = quiet(make_pool())
    selector = EL2N(0.1)
    core = selector.select(pool, 30)
    rows, chunks = selector.selection_.rows, []
    pool.scan(lambda chunk: chunks.append(chunk) or {"n": chunk.weights})
    for chunk in chunks:
        with torch.no_grad():
            p = pool.model(chunk.images).logits.softmax(1)
        expected = [float(np.linalg.norm(p[i].numpy() - F.one_hot(chunk.labels[i], 10).numpy())) for i in range(len(p))]
        expected = np.array(expected) * (chunk.weights > 0).numpy()
        np.testing.assert_allclose(rows.scores[chunk.ids.numpy()], expected, atol=1e-5)
    best = np.argsort(-np.where(rows.selected, rows.scores, -1), kind="stable")[:30]
    assert set(core.ids.tolist()) == set(best.tolist())


def test_el2n_is_neither_random_nor_low_confidence_and_drops_no_class_by_its_number(make_pool):
    selector = EL2N(0.3)
    kept = selector.select(make_pool(), 90).ids.numpy()
    rows = selector.selection_.rows
    assert set(kept) != set(Random(0.3).select(make_pool(), 90).ids.tolist())
    assert rows.selected[kept].all()  # the largest errors overall would be those without weight
    least = np.argsort(np.where(rows.selected, rows.confidence, 2))[:90]
    assert len(set(kept) & set(least)) < 80
    dropped = np.setdiff1d(np.flatnonzero(rows.selected), kept)
    assert len(set(rows.labels[dropped])) > 5
    for c in set(rows.labels[dropped]):  # no class is set back as a whole
        assert rows.scores[dropped[rows.labels[dropped] == c]].max() <= rows.scores[kept].min()


def test_el2n_averages_over_refreshes(make_pool):
    pools = [make_pool(number=n) for n in (1, 2)]
    single = []
    for pool in pools:
        selector = EL2N(0.2, smooth=0)
        selector.select(pool, 60)
        single.append(selector.selection_.rows)
    selector = EL2N(0.2, smooth=0.25)
    for pool in pools:
        selector.select(pool, 60)
    both = single[0].selected & single[1].selected
    expected = 0.25 * single[0].scores + 0.75 * single[1].scores
    np.testing.assert_allclose(selector.selection_.rows.scores[both], expected[both], rtol=1e-5)
    fresh = ~single[0].selected & single[1].selected
    np.testing.assert_allclose(selector.selection_.rows.scores[fresh], single[1].scores[fresh], rtol=1e-5)


def test_nothing_selected_falls_back_on_confidence(make_pool):
    for selector in (INFUSE(0.1, take="best", quota="none"), EL2N(0.1), RETRIEVE(0.1), GradMatch(0.1)):
        kept = selector.select(make_pool(FixMatch(threshold=1.0)), 30).ids.numpy()
        rows = selector.selection_.rows
        assert not rows.selected.any()
        assert rows.confidence[kept].min() >= np.sort(rows.confidence)[-30]
