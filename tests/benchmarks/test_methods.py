"""The comparison of methods on features: its ranks, its rows, and that a killed study continues."""

import json
from functools import partial

import numpy as np
import pytest
from PIL import Image

from benchmarks import engines, features, methods, minutes
from benchmarks.__main__ import main
from vcc_infuse import Balance, Evidence, FlexMatch
from vcc_infuse.training import auto


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1, 2], 20)
    centers = rng.normal(size=(3, 16)) * 3
    train = (centers[y][:, None] + rng.normal(size=(60, 7, 16))).astype(np.float16)
    np.savez(tmp_path / "made.npz", train=train, train_y=y, test=train[:, 0], test_y=y)
    return tmp_path


def test_a_killed_study_continues_and_its_page_has_every_row(folder, monkeypatch):
    words = ["methods", "--features", str(folder), "--sets", "made", "--per_class", "3", "--seeds", "0", "1"]
    words += ["--steps", "2", "--rows", "LinearProbe", "FixMatch", "--out", str(folder / "out")]
    whole = methods.measure
    calls = []

    def dies(*arguments):
        calls.append(arguments[1:4])
        if len(calls) == 3:
            raise KeyboardInterrupt
        return whole(*arguments)

    monkeypatch.setattr(methods, "measure", dies)
    assert main(words) != 0
    assert main(words) == 0
    assert [call for call in calls if calls.count(call) > 1] == [calls[2]] * 2  # only what was killed ran twice
    runs = methods.read_runs(folder / "out" / "runs.jsonl")
    assert len(runs) == 4
    assert all(0 <= run["error"] <= 1 for run in runs)
    text = (folder / "out" / "methods.md").read_text()
    assert "| FixMatch | " in text
    assert "| LinearProbe | " in text


def test_ranks_are_those_of_a_slow_count_among_rows_that_are_complete():
    rng = np.random.default_rng(0)
    names = ("FixMatch", "FlexMatch", "LinearProbe", "SimMatch")
    errors = rng.integers(0, 4, (6, 4)) / 10  # with ties
    runs = [
        {"set": "s", "per_class": 4, "seed": seed, "row": name, "error": errors[seed, column]}
        for seed in range(6)
        for column, name in enumerate(names)
        if name != "SimMatch" or seed == 0
    ]
    ranks = methods.mean_ranks(runs)
    assert set(ranks) == set(names[:3])
    for column, name in enumerate(names[:3]):
        below = [sum(e < row[column] for e in row[:3]) for row in errors]
        equal = [sum(e == row[column] for e in row[:3]) for row in errors]
        assert ranks[name] == pytest.approx(np.mean(below) + (np.mean(equal) + 1) / 2)


def test_rows_are_what_they_are_called():
    algorithm, calibrator = methods.parts("FlexMatch + Evidence")
    assert isinstance(algorithm, FlexMatch)
    assert isinstance(calibrator, Evidence)
    assert calibrator.weigh
    assert not methods.parts("FixMatch + Evidence")[1].weigh
    wrapped, none = methods.parts("Balance(FlexMatch)")
    assert isinstance(wrapped, Balance)
    assert isinstance(wrapped.base, FlexMatch)
    assert none is None


def test_features_of_a_dataset(tmp_path, monkeypatch):
    words = ["features", "--data", "digits", "--images", "40", "--network", "test_resnet", "--size", "32"]
    monkeypatch.setattr(features, "Timm", lambda name, input_size: features_timm(name, "none", input_size))
    monkeypatch.setattr(features, "TEST_IMAGES", 30)
    assert main([*words, "--cache", str(tmp_path), "--out", str(tmp_path)]) == 0
    made = features.FeatureSet.load(tmp_path, "digits-32")
    assert made.train.shape[:2] == (40, 7)
    assert np.bincount(made.train_y).tolist() == [4] * 10
    assert len(made.test) == len(made.test_y) == 30
    data = made.draw(1, 0)
    assert len(data.split.labeled) == 10
    assert (data.hidden_truth >= 0).any()


def test_features_of_plain_views_embed_no_others(tmp_path, monkeypatch):
    words = ["features", "--data", "digits", "--images", "40", "--network", "test_resnet", "--size", "32", "--plain"]
    monkeypatch.setattr(features, "Timm", lambda name, input_size: features_timm(name, "none", input_size))
    monkeypatch.setattr(features, "TEST_IMAGES", 30)
    opened = []
    monkeypatch.setattr(features, "open_bank", lambda *given, **options: opened.append(open_bank(*given, **options))
                        or opened[0])  # fmt: skip
    assert main([*words, "--cache", str(tmp_path), "--out", str(tmp_path)]) == 0
    made = features.FeatureSet.load(tmp_path, "digits-32")
    assert made.train.shape[:2] == (40, 1)
    assert made.slots == (0, 0)
    assert len(opened[0].stored["train"].missing_rows(np.arange(40))) == 40


features_timm = features.Timm
open_bank = features.open_bank


def test_engines_are_compared_in_turns(tmp_path, capsys):
    words = ["engines", "--model", "test_resnet", "--weights", "none", "--sizes", "32:32", "--rounds", "1"]
    assert main([*words, "--out", str(tmp_path / "engines")]) == 0
    rows = json.loads((tmp_path / "engines.json").read_text())["rows"]
    assert [row["engine"] for row in rows] == [*engines.OPTIONS] * 2
    assert all(row["ratio_cpu"] == 1 for row in rows if row["engine"] == "PyTorch")
    assert "ONNX Runtime" in capsys.readouterr().out


def test_error_against_minutes(tmp_path, monkeypatch):
    timm = minutes.Timm
    monkeypatch.setattr(minutes, "Timm", lambda name, input_size: timm("test_resnet", "none", input_size or 32))
    monkeypatch.setattr(minutes.vcc_infuse, "train", partial(minutes.vcc_infuse.train, steps=3, batch_size=4))
    monkeypatch.setattr(auto, "TINY", 99)  # the defaults train a small network here, and compare no large ones
    folder = tmp_path / "photos"
    for number, part in enumerate(("train", "test")):
        for color in ("red", "blue"):
            (folder / part / color).mkdir(parents=True)
            for i in range(6):
                shade = (200 + i, number, 0) if color == "red" else (0, number, 200 + i)
                Image.new("RGB", (24, 24), shade).save(folder / part / color / f"{i}.png")
    words = ["minutes", "--data", str(folder), "--labels", "4", "--seeds", "2", "--out", str(tmp_path / "m")]
    assert main(words) == 0
    runs = json.loads((tmp_path / "m.json").read_text())["runs"]
    assert [(run["way"], run["seed"]) for run in runs] == [(name, seed) for seed in (0, 1) for name in minutes.WAYS]
    assert all(run["minutes"] > 0 for run in runs)
    assert (tmp_path / "m.png").read_bytes().startswith(b"\x89PNG")
    written = (tmp_path / "m.md").read_text()
    assert "| defaults | " in written
    assert f"chose on the labels: {runs[-1]['network']} (2)." in written
    monkeypatch.setattr(minutes, "WAYS", dict.fromkeys(minutes.WAYS))  # which nothing could call
    assert main(words) == 0
