"""The order in which examples are kept, and class quotas, against slow loops; the statistics of a refresh."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.scored_rows import make_table, slow_order

from vcc_infuse.selectors import Random, RobustINFUSE
from vcc_infuse.selectors.ranking import (
    Scored,
    Selection,
    best,
    describe_selection,
    equal,
    order,
    proportional,
    rows_from_state,
    rows_to_state,
)
from vcc_infuse.types import Coreset
from vcc_infuse.utils.io import save_npz


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


def small_selection():
    rows = Scored(np.arange(6), np.array([0.5, 0.1, -0.2, 0.0, 0.3, 0.9], np.float32),
                  np.array([1, 1, 1, 0, 0, 1], bool), np.full(6, 0.9), np.array([0, 1, 1, 2, 0, 2]))  # fmt: skip
    return Selection(Coreset(torch.tensor([0, 1, 5, 4]), torch.tensor([2.0, 1.0, 0.5, 0.5])), rows)


def test_statistics_computed_small_selection():
    statistics = describe_selection(
        small_selection(),
        classes=3,
        pool_size=6,
        previous=Coreset(torch.tensor([1, 2, 5]), torch.ones(3)),
        truth=np.array([0, 0, 1, 2, 1, -1]),
        bins=4,
    )
    assert statistics["kept"] == 4
    assert statistics["kept_share"] == pytest.approx(4 / 6)
    assert statistics["overlap"] == 0.5
    assert statistics["weight_largest"] == 2
    assert statistics["kept_share_per_class"] == [0.5, 0.25, 0.25]
    assert statistics["kept_share_per_true_class"] == pytest.approx([2 / 3, 1 / 3, 0])
    assert statistics["selected_share_of_kept"] == 0.75
    assert statistics["precision_of_kept"] == 0.5  # of 0 and 1; the truth of 5 is unknown, 4 is not selected
    assert statistics["precision_of_pool"] == pytest.approx(2 / 3)
    histogram = statistics["score_histogram"]
    assert sum(histogram["all"]) == 4
    assert sum(histogram["kept"]) == 3
    assert len(histogram["edges"]) == 5
    json.dumps(statistics)


def test_without_scores_or_truth(make_pool):
    selector = Random(keep=0.1)
    selector.select(make_pool(), 30)
    statistics = describe_selection(selector.selection_, classes=10, pool_size=300)
    assert statistics["overlap"] is None
    assert "precision_of_kept" not in statistics
    json.dumps(statistics)


def test_precision_of_kept_labels_is_measured_against_the_hidden_truth(make_pool, truth):
    selector = RobustINFUSE(keep=0.2)  # it keeps unselected examples too, which must not count
    kept = selector.select(make_pool(), 60).ids.numpy()
    statistics = describe_selection(selector.selection_, classes=10, pool_size=300, truth=truth)
    rows = selector.selection_.rows
    used = kept[rows.selected[kept]]
    assert 0 < len(used) < len(kept)
    assert statistics["precision_of_kept"] == pytest.approx((rows.labels[used] == truth[used]).mean())


def test_file_comes_back_and_a_failed_write_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "coreset" / "step-7.npz"
    save_npz(path, small_selection().columns())
    with np.load(path, allow_pickle=False) as saved:
        assert saved["ids"].tolist() == [0, 1, 5, 4]
        assert saved["weights"].tolist() == [2, 1, 0.5, 0.5]
        np.testing.assert_array_equal(saved["scores"], small_selection().rows.scores)
        assert saved["labels"].tolist() == [0, 1, 1, 2, 0, 2]
    before = path.read_bytes()

    def fail(handle, **columns):
        handle.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez_compressed", fail)
    with pytest.raises(OSError, match="disk full"):
        save_npz(path, small_selection().columns())
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == ["step-7.npz"]
