import numpy as np
import pytest

from vcc_infuse import FixMatch, SmallConv, SSLData, Trainer
from vcc_infuse.calibrators.temperature import TemperatureScaling
from vcc_infuse.data.batches import Batches
from vcc_infuse.data.split import balanced, hold_out
from vcc_infuse.errors import UserError
from vcc_infuse.inference.predictor import make_views


def test_held_out_rows_are_in_neither_part_and_cover_every_class(digits):
    y, split = digits.dataset.train.y, digits.split
    for fraction, each in ((0.01, 1), (0.5, 2), (0.9, 3)):
        parts = hold_out(split, y, fraction, digits.dataset.classes)
        assert np.bincount(y[parts.held_out]).tolist() == [each] * 10
        assert sorted([*parts.labeled, *parts.held_out]) == sorted(split.labeled)
        assert sorted([*parts.pool, *parts.held_out]) == sorted(split.pool)
        assert parts.pool.tolist() == [row for row in split.pool if row not in parts.held_out]


def test_a_class_with_one_label_cannot_be_held_out(digits):
    one = balanced(digits.dataset.train.y, 10, 10, 0)
    with pytest.raises(UserError, match="labeled_strong"):
        SSLData(digits.dataset, one).hold_out(0.1)


def test_every_batch_holds_held_out_images_with_their_labels(digits):
    data = digits.hold_out(0.25)
    seen = []
    for rank in range(2):
        batches = Batches(
            data, lambda name, raw: raw, ("weak",), batch_size=8, unlabeled_batch_size=8, rank=rank, world=2
        )
        batch = batches.at(3)
        for image, label in zip(batch.views["held_out"].numpy(), batch.held_out_y.tolist(), strict=True):
            rows = [row for row in data.split.held_out if np.array_equal(data.dataset.train.x[row], image)]
            assert [data.dataset.train.y[row] for row in rows] == [label]
            seen += rows
    assert len(set(seen)) == 8
    assert (
        Batches(digits, make_views(digits.dataset), ("weak",), batch_size=8, unlabeled_batch_size=8).at(0).held_out_y
        is None
    )


def test_a_run_fits_its_temperature_to_images_it_does_not_train_on(digits):
    trainer = Trainer(SmallConv(4), FixMatch(), TemperatureScaling(every=2), steps=6, eval_every=3, batch_size=8,
                      unlabeled_ratio=2, progress=False, device="cpu")  # fmt: skip
    trainer.fit(digits)
    state = trainer.state_
    assert state.task.labeled == 30
    assert state.calibrator.memory.pushed == 48
    assert state.calibrator.temperature != 1
