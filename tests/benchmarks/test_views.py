"""Studies on some views of a feature set, on promises and on int8: what they select, and what their pages say."""

import json

import numpy as np
import pytest

from benchmarks import hand_out, promises, quantized, views
from benchmarks.features import FeatureSet

FEATURES = FeatureSet(
    "made", np.arange(12 * 7 * 2).reshape(12, 7, 2) / 8, np.arange(12) % 3, np.ones((3, 2)), np.arange(3)
)


@pytest.mark.parametrize(
    ("weak", "strong", "slots", "kept"),
    [(2, 4, (2, 4), [0, 1, 2, 3, 4, 5, 6]), (1, 2, (1, 2), [0, 1, 3, 4]), (0, 1, (1, 1), [0, 0, 3])],
)
def test_views_are_left_out(weak, strong, slots, kept):
    data = views.reduced(FEATURES, views.Views(224, weak, strong), 1, 0)
    assert data.dataset.slots == slots
    np.testing.assert_array_equal(data.dataset.train.x, FEATURES.train[:, kept])


def test_errors_stand_beside_the_minutes_of_their_views():
    errors = {(2, 4): (0.3, 0.2), (0, 1): (0.4, 0.2)}
    runs = [
        {"set": "s", "per_class": 4, "seed": seed, "size": 224, "weak": weak, "strong": strong, "error": error}
        for (weak, strong), values in errors.items()
        for seed, error in enumerate(values)
    ]
    runs.append({**runs[0], "seed": 7})  # only one choice of views has it
    rows = [line for line in views.page(runs, {224: 10.0}, "x").splitlines() if line.startswith("| 224 ")]
    assert rows[0].startswith("| 224 | 1 + 0 + 1 | 2.0 | 30.00 | +5.00 ± 5.00 |")
    assert rows[1].startswith("| 224 | 1 + 2 + 4 | 7.0 | 25.00 | +0.00 ± 0.00 |")


def test_times_are_of_whole_embedding_at_the_size_itself(tmp_path):
    rows = [
        {"work": work, "image": image, "size": size, "engine": engine, "milliseconds": number}
        for number, (work, image, size, engine) in enumerate(
            [
                ("forward", 96, 96, "ONNX Runtime"),
                ("embedding, 7 views", 96, 96, "PyTorch"),
                ("embedding, 7 views", 96, 96, "ONNX Runtime"),
                ("embedding, 7 views", 32, 224, "ONNX Runtime"),
            ]
        )
    ]
    (tmp_path / "e.json").write_text(json.dumps({"rows": rows}))
    assert views.milliseconds(tmp_path / "e.json") == {96: 2}


def test_promises_are_about_the_mean():
    base = {"set": "s", "per_class": 4, "trusted": 0.5, "error": 0.2, "error_probe": 0.3, "promise": "max_pool_error"}
    text = promises.page([{**base, "seed": 0, "share": 0.02}, {**base, "seed": 1, "share": 0.06}], "x")
    assert "| `max_pool_error` | s | 4 | 5 | 4.0 | 6.0 | 50.0 | 20.0 | 30.0 | 2 |" in text
    assert "`max_pool_error`: mean of all runs 4.00 ± 2.00 %; above 5 % in 1 of 2 runs." in text


def test_int8_is_compared_with_float():
    answers = {"float": np.eye(2), "int8": np.array([[1.0, 0.0], [1.0, 1.0]])}
    seconds = {"float": np.array([[0.32, 1.0]]), "int8": np.array([[0.16, 1.0]])}
    assert "| int8 | 5.0 | 2.00 | 0.70711 | 0.85355 |" in quantized.page(answers, seconds, "x")


@pytest.mark.parametrize(("pool", "labels"), [("skewed", [20] * 3), ("natural", [2, 6, 20]), ("reversed", [2, 6, 20])])
def test_pools_of_other_shares(pool, labels):
    y = np.repeat([0, 1, 2], 60)
    rows = np.zeros((180, 7, 2))
    data = hand_out.with_pool(FeatureSet("made", rows, y, rows[:3, 0], y[:3]).draw(20, 0), pool, 1)
    unlabeled = np.setdiff1d(data.split.pool, data.split.labeled)
    assert sorted(np.bincount(y[unlabeled])) == [4, 13, 40]
    assert sorted(np.bincount(y[data.split.labeled])) == labels
    rarest = np.bincount(y[data.split.labeled]).argmin()
    if pool != "skewed":
        frequent = np.bincount(y[unlabeled])
        assert (frequent.argmin(), frequent.argmax())[pool == "reversed"] == rarest


def test_drawn_labels_are_of_every_class_and_not_as_many_of_each():
    y = np.repeat([0, 1, 2], 60)
    rows = np.zeros((180, 7, 2))
    features = FeatureSet("made", rows, y, rows[:3, 0], y[:3])
    for seed in range(5):
        counts = np.bincount(y[hand_out.with_pool(features.draw(4, seed), "drawn", seed).split.labeled])
        assert counts.sum() == 12
        assert counts.min() >= 1
    pool = hand_out.with_pool(features.draw(4, 0), "drawn", 0).split.pool
    np.testing.assert_array_equal(np.bincount(y[pool]), [60, 60, 60])
    assert (
        len(
            {tuple(np.bincount(y[hand_out.with_pool(features.draw(4, s), "drawn", s).split.labeled])) for s in range(5)}
        )
        > 1
    )
