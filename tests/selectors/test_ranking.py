"""The order of keeping, streamed or not, and class quotas, against slow loops."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vcc_infuse.selectors.out_of_core import Lots, best_stream, top_stream
from vcc_infuse.selectors.ranking import Scored, best, equal, order, pieces, proportional


def table(count, seed=0, levels=5):
    rng = np.random.default_rng(seed)
    scores = rng.integers(levels, size=count).astype(np.float32)  # many ties
    return Scored(np.arange(count), scores, rng.random(count) < 0.6, rng.integers(3, size=count) / 3,
                  rng.integers(4, size=count))  # fmt: skip


def slow_order(rows):
    def key(i):
        first = -rows.scores[i] if rows.selected[i] else 0
        return (not rows.selected[i], first, -rows.confidence[i], rows.ids[i])

    return sorted(range(len(rows.ids)), key=key)


def test_order_equals_a_python_sort_and_puts_the_unselected_last():
    rows = table(200)
    ranked = order(rows)
    assert ranked.tolist() == slow_order(rows)
    assert (np.diff(rows.selected[ranked].astype(int)) <= 0).all()


def test_a_score_that_is_not_a_number_comes_after_every_other_selected_one():
    rows = table(50)
    rows.scores[3], rows.selected[3] = np.nan, True
    assert order(rows).tolist().index(3) == rows.selected.sum() - 1


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 300), st.integers(1, 120), st.integers(1, 50), st.integers(0, 40), st.integers(0, 99))
def test_stream_equals_sorting_all(count, keep, size, slack, seed):
    rows = table(count, seed)
    found = top_stream(pieces(rows, size), keep, slack)
    assert found.ids.tolist() == order(rows)[:keep].tolist()
    np.testing.assert_array_equal(found.scores, rows.scores[found.ids])


class Long:
    """300,000 rows that are made when they are asked for, as often as they are."""

    def __iter__(self):
        for start in range(0, 300_000, 1000):
            rows = table(1000, start, levels=10**6)
            yield rows._replace(ids=rows.ids + start)


@pytest.mark.parametrize("quota", ["none", "proportional", "equal"])
def test_stream_holds_few_rows(quota):
    tracemalloc.start()
    found = best_stream(Long(), 500, quota, 4, slack=2000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(found.ids) == 500
    assert peak < 1_500_000 < 300_000 * 33  # bytes: far less than the stream


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 300), st.integers(1, 150), st.integers(1, 50), st.integers(0, 40), st.integers(0, 99))
@pytest.mark.parametrize("quota", ["none", "proportional", "equal"])
def test_a_stream_with_a_class_quota_keeps_what_the_whole_table_would(quota, count, keep, size, slack, seed):
    rows, keep = table(count, seed), min(keep, count)
    found = best_stream(list(pieces(rows, size)), keep, quota, 4, slack)
    kept = best(rows, keep, quota, 4)
    assert found.ids.tolist() == [i for i in slow_order(rows) if i in set(kept.tolist())]


def test_lots_are_drawn_among_the_harmless_and_stay_as_they_are():
    rows = table(4000)._replace(scores=np.random.default_rng(1).normal(size=4000).astype(np.float32))
    harmful = rows.selected & (rows.scores < 0)
    drawn = Lots(list(pieces(rows, 100)), seed=3)
    first, again = (np.concatenate([chunk.scores for chunk in drawn]) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert first[harmful].max() < 0 <= first[~harmful].min()
    np.testing.assert_array_equal(first[harmful], rows.scores[harmful])
    free = rows.selected & ~harmful
    assert abs(np.corrcoef(first[free], rows.scores[free])[0, 1]) < 0.1  # among the harmless the size does not count
    assert abs(first[free].mean() - 0.5) < 0.04
    other = np.concatenate([chunk.scores for chunk in Lots(list(pieces(rows, 100)), seed=4)])
    assert (first[free] != other[free]).mean() > 0.99


def test_an_empty_stream_is_refused():
    with pytest.raises(ValueError, match="empty"):
        top_stream([], 3)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=8), st.integers(0, 200))
def test_quotas_use_the_budget_and_never_more_than_there_is(counts, budget):
    counts = np.array(counts)
    for rule in (proportional, equal):
        places = rule(counts, budget)
        assert places.sum() == min(budget, counts.sum())
        assert (places >= 0).all()
        assert (places <= counts).all()
    exact = counts * min(budget, counts.sum()) / max(counts.sum(), 1)
    assert (np.abs(proportional(counts, budget) - exact) < 1 + 1e-6).all()
    level = equal(counts, budget)
    assert level[level < counts].size == 0 or level.max() - level[level < counts].min() <= 1


def test_quota_keeps_the_best_of_each_class():
    rows = table(400, levels=1000)
    for quota, rule in (("proportional", proportional), ("equal", equal)):
        kept = best(rows, 100, quota, 4)
        counts = np.bincount(rows.labels[rows.selected], minlength=4)
        assert len(set(kept)) == 100
        assert rows.selected[kept].all()
        np.testing.assert_array_equal(np.bincount(rows.labels[kept], minlength=4), rule(counts, 100))
        for c in range(4):
            mine = rows.selected & (rows.labels == c)
            chosen = np.zeros(400, bool)
            chosen[kept] = True
            assert rows.scores[mine & chosen].min() >= rows.scores[mine & ~chosen].max()


def test_quota_with_more_places_than_selected_fills_by_confidence():
    rows = table(100)
    count = int(rows.selected.sum())
    kept = best(rows, count + 10, "equal", 4)
    assert rows.selected[kept[:count]].all()
    rest = np.flatnonzero(~rows.selected)
    assert sorted(rows.confidence[kept[count:]])[::-1] == sorted(rows.confidence[rest])[::-1][:10]
