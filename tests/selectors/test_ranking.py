"""The order in which examples are kept, and class quotas, against slow loops."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.scored_rows import make_table, slow_order

from vcc_infuse.selectors.ranking import best, equal, order, proportional, rows_from_state, rows_to_state


def test_order_equals_a_python_sort_and_puts_the_unselected_last():
    rows = make_table(200)
    ranked = order(rows)
    assert ranked.tolist() == slow_order(rows)
    assert (np.diff(rows.selected[ranked].astype(int)) <= 0).all()


def test_a_nan_score_comes_after_every_other_selected_one():
    rows = make_table(50)
    rows.scores[3], rows.selected[3] = np.nan, True
    assert order(rows).tolist().index(3) == rows.selected.sum() - 1


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=8), st.integers(0, 200))
def test_quotas_use_the_budget_and_never_exceed_the_counts(counts, budget):
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
    rows = make_table(400, levels=1000)
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
    rows = make_table(100)
    count = int(rows.selected.sum())
    kept = best(rows, count + 10, "equal", 4)
    assert rows.selected[kept[:count]].all()
    rest = np.flatnonzero(~rows.selected)
    assert sorted(rows.confidence[kept[count:]])[::-1] == sorted(rows.confidence[rest])[::-1][:10]


def test_rows_survive_a_checkpoint():
    rows = make_table(20)
    for column, again in zip(rows, rows_from_state(rows_to_state(rows)), strict=True):
        np.testing.assert_array_equal(column, again)
    assert rows_from_state({}) is None
