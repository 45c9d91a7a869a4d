"""Labels kept for validation: data without a test set can still be measured, and nothing of it leaks into training."""

import numpy as np
import pytest
import torch
from tests.helpers.images import striped

from vcc_infuse import FixMatch, SmallConv, SSLData, Trainer
from vcc_infuse.algorithms import FullySupervised, Supervised
from vcc_infuse.bank.bank import BankConfig
from vcc_infuse.bank.embed import embed_data
from vcc_infuse.data.split import validation_rows
from vcc_infuse.errors import OptionError
from vcc_infuse.inference.evaluate import measure

QUICK = {"steps": 2, "batch_size": 6, "unlabeled_ratio": 1, "progress": False, "device": "cpu"}


def images(labeled=30, rows=60, classes=3, seed=0):
    """Every image is different, so that rows can be found again by their pixels."""
    rng = np.random.default_rng(seed)
    y = np.where(np.arange(rows) < labeled, np.arange(rows) % classes, -1)
    return rng.integers(0, 256, (rows, 8, 8, 1), dtype=np.uint8), y


def test_the_share_is_stratified_and_in_neither_part():
    x, y = images()
    data = SSLData.from_arrays(x, y, validation=0.2)
    rows = data.dataset.validation
    assert data.dataset.evaluated_on == "validation"
    assert np.bincount(y[rows]).tolist() == [2, 2, 2]
    assert data.dataset.test.y.tolist() == y[rows].tolist()
    assert np.array_equal(data.dataset.test.x, x[rows])
    assert not set(rows) & {*data.split.labeled, *data.split.pool}
    assert sorted([*rows, *data.split.labeled]) == list(range(30))
    assert sorted([*rows, *data.split.pool]) == list(range(60))


def test_the_labels_are_gone_from_the_training_rows():
    x, y = images()
    data = SSLData.from_arrays(x, y, validation=0.2)
    assert (data.dataset.train.y[data.dataset.validation] == -1).all()
    assert not set(data.with_all_labels().split.labeled) & set(data.dataset.validation)
    assert (y >= 0).sum() == 30, "the caller's labels are left alone"


@pytest.mark.parametrize("algorithm", [Supervised, FixMatch, FullySupervised])
def test_no_batch_holds_an_image_kept_for_validation(algorithm):
    x, y = images()
    data = SSLData.from_arrays(x, y, validation=0.3)
    trainer = Trainer(SmallConv(4), algorithm(), **QUICK)
    seen = []
    trainer.prepare(data)
    views = trainer.batches_.rows
    trainer.batches_.rows = lambda rows: seen.extend(rows) or views(rows)
    for step in range(20):
        trainer.batches_.at(step)
    assert len(set(seen)) > 10
    assert not set(seen) & set(data.dataset.validation)


def test_the_same_rows_every_time_and_every_class_keeps_a_label():
    y = np.repeat([0, 1, 2], [1, 2, 40])
    rows = validation_rows(y, 0.9)
    assert np.array_equal(rows, validation_rows(y, 0.9))
    assert set(np.delete(y, rows)) == {0, 1, 2}
    assert 0 not in y[rows]


def test_a_test_set_is_used_if_there_is_one():
    data = striped()
    assert data.with_validation(0.2) is data
    assert data.dataset.evaluated_on == "test"
    assert SSLData.from_arrays(*images()).dataset.evaluated_on is None


@pytest.mark.parametrize("share", [0, 1, -0.1, 7, float("nan"), "half", True])
def test_absurd_shares_are_refused(share):
    with pytest.raises(OptionError, match="validation must be a number in"):
        SSLData.from_arrays(*images(), validation=share)


def test_one_label_per_class_cannot_be_shared():
    x, y = images(labeled=3)
    with pytest.raises(OptionError, match="validation cannot be taken, because every class has one label.*none"):
        SSLData.from_arrays(x, y, validation=0.2)


def test_the_summary_says_what_was_measured_on():
    x, y = images()
    summary = Trainer(SmallConv(4), **QUICK).fit(SSLData.from_arrays(x, y, validation=0.2))
    assert (summary["evaluated_on"], summary["evaluated_images"], summary["labels"]) == ("validation", 6, 24)
    assert 0 <= summary["error"] <= 1
    without = Trainer(SmallConv(4), **QUICK).fit(SSLData.from_arrays(x, y))
    assert without["evaluated_on"] is None
    assert "error" not in without


def test_a_bank_embeds_them_once_and_its_key_does_not_depend_on_the_share(tmp_path):
    x, y = striped().dataset.train.x, striped().dataset.train.y
    found = [
        embed_data(SSLData.from_arrays(x, y, validation=share), SmallConv(4), BankConfig(1, 1), cache=str(tmp_path),
                   device="cpu", progress=False)
        for share in (0.25, 0.5, None)
    ]  # fmt: skip
    assert len(list((tmp_path / "banks").iterdir())) == 1
    for data in found[:2]:
        rows = data.dataset.validation
        assert np.array_equal(data.dataset.test.x, data.dataset.train.x[rows, :1])
        assert np.abs(data.dataset.test.x).sum() > 0
        assert data.dataset.evaluated_on == "validation"


def test_only_labels_that_were_hidden_can_check_pseudo_labels(digits):
    shown = set(digits.split.labeled)
    expected = [-1 if row in shown else digits.dataset.train.y[row] for row in digits.split.pool]
    assert digits.hidden_truth.tolist() == expected
    assert (digits.with_all_labels().hidden_truth == -1).all()


@pytest.mark.parametrize("classes", [2, 5, 6])
def test_a_top_five_needs_more_than_five_classes(classes):
    y = torch.arange(12) % classes
    found = measure(torch.randn(12, classes), torch.full((12,), 0.5), y)
    assert ("error_top5" in found) == (classes > 5)
