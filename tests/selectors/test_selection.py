"""The statistics and the file of a refresh."""

import json

import numpy as np
import pytest
import torch

from vcc_infuse.selectors import Random, RobustINFUSE
from vcc_infuse.selectors.ranking import Scored, Selection, describe_selection
from vcc_infuse.types import Coreset
from vcc_infuse.utils.io import save_npz


def small_selection():
    rows = Scored(np.arange(6), np.array([0.5, 0.1, -0.2, 0.0, 0.3, 0.9], np.float32),
                  np.array([1, 1, 1, 0, 0, 1], bool), np.full(6, 0.9), np.array([0, 1, 1, 2, 0, 2]))  # fmt: skip
    return Selection(Coreset(torch.tensor([0, 1, 5, 4]), torch.tensor([2.0, 1.0, 0.5, 0.5])), rows)


def test_statistics_computed_small_selection():
    statistics = describe_selection(
        small_selection(), 3, 6, Coreset(torch.tensor([1, 2, 5]), torch.ones(3)), np.array([0, 0, 1, 2, 1, -1]), bins=4
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
    selector = Random(0.1)
    selector.select(make_pool(), 30)
    statistics = describe_selection(selector.selection_, 10, 300)
    assert statistics["overlap"] is None
    assert "precision_of_kept" not in statistics
    json.dumps(statistics)


def test_precision_of_kept_labels_is_measured_against_the_hidden_truth(make_pool, truth):
    selector = RobustINFUSE(0.2)  # it keeps unselected examples too, which must not count
    kept = selector.select(make_pool(), 60).ids.numpy()
    statistics = describe_selection(selector.selection_, 10, 300, truth=truth)
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
