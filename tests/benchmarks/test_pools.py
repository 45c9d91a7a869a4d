"""A tiny version of every part of `python -m benchmarks pools`, and its arithmetic."""

import json
import zipfile

import numpy as np
import pytest
from PIL import Image

from benchmarks import features as feature_sets
from benchmarks import pool_copies, pool_features, pool_scores, pool_study, pool_suggest, pools
from benchmarks.__main__ import main


@pytest.fixture
def features(tmp_path):
    """A set of three easy classes."""
    rng = np.random.default_rng(0)
    y = np.arange(180) % 3
    x = 3 * np.eye(3, 8)[y] + rng.normal(size=(180, 8))
    np.savez(
        tmp_path / "easy.npz", train=x[:120, None].astype(np.float16), train_y=y[:120], test=x[120:], test_y=y[120:]
    )
    return tmp_path


def run(part, features, *words):
    out = features / "out"
    assert (
        main(["pools", part, "--features", str(features), "--sets", "easy", "--seeds", "2", "--out", str(out), *words])
        == 0
    )
    assert "python -m benchmarks pools" in (out / f"{part}.md").read_text()
    return json.loads((out / f"{part}.json").read_text())["tables"]


def mean(cell):
    return float(cell.split(" ± ")[0])


def test_unknown(features):
    (table,) = run("unknown", features)
    assert [(row[1], row[-1]) for row in table["rows"]] == [(4, 2), (10, 2), (25, 2)]
    assert all(mean(row[2]) > 0.7 for row in table["rows"])


def test_a_killed_study_continues(features, monkeypatch):
    run("unknown", features)
    log = features / "out" / "unknown.jsonl"
    lines = log.read_text().splitlines()
    log.write_text("\n".join(lines[:-1]) + "\n")
    asked = []
    monkeypatch.setitem(
        pools.STUDIES,
        "unknown",
        pools.STUDIES["unknown"]._replace(values=lambda data, case, seed: asked.append((case, seed)) or [0.0] * 6),
    )
    run("unknown", features)
    assert asked == [((25,), 1)]


def test_means_and_deviations_over_seeds():
    runs = [{"set": "a", "case": [4], "seed": seed, "values": [value, None]} for seed, value in ((1, 3.0), (0, 1.0))]
    (table,) = pool_study.table_of("title", ("labels", "x", "y"), 2)(runs)
    assert table.rows == [["a", 4, "2.00 ± 1.41", "–", 2]]
    assert pool_study.commands("prog", "part", [*runs, {"set": "b", "seed": 1}]) == [
        "OMP_NUM_THREADS=1 prog part --features features --sets a b --seeds 2"
    ]


def test_labels(features):
    (table,) = run("labels", features)
    twenty = next(row for row in table["rows"] if row[1:3] == [25, "20 %"])
    assert mean(twenty[3]) > 0.7
    assert mean(twenty[4]) > 0.9


def test_scores_of_unknown_images(tmp_path):
    rng = np.random.default_rng(0)
    for name, start in (("stl10-8", 0), ("cifar100-8", 4)):
        y = np.arange(300) % 5
        x = 9 * np.eye(10, 12)[y + start][:, None] + rng.normal(size=(300, 3, 12))
        np.savez(tmp_path / f"{name}.npz", train=x.astype(np.float16), train_y=y, test=x[:5, 0], test_y=y[:5])
    words = ["--features", str(tmp_path), "--sets", "stl10-8", "--seeds", "1", "--out", str(tmp_path)]
    assert main(["pools", "unknown_scores", *words]) == 0
    (table,) = json.loads((tmp_path / "unknown_scores.json").read_text())["tables"]
    assert [row[1] for row in table["rows"]] == list(pool_scores.KINDS)
    assert [mean(row[2]) > 0.9 for row in table["rows"]] == [True] * 4
    mixed = pool_scores.mixture(tmp_path, pool_features.load(tmp_path / "stl10-8.npz"), pool_scores.KINDS[2], 0)
    assert mixed.foreign.sum() == round(180 * 0.02 / 0.98)
    assert not mixed.foreign[mixed.labeled].any()


def test_scores_against_the_textbook():
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1], 10)
    x = rng.normal(size=(200, 6)) @ rng.normal(size=(6, 6))
    mixed = pool_scores.Mixture(x, np.zeros(200, bool), np.arange(20), y, x[:20, None])
    means = np.stack([x[:10].mean(0), x[10:20].mean(0)])

    def shrunk(covariance):
        return np.linalg.inv(0.1 * covariance + 0.9 * np.trace(covariance) / 6 * np.eye(6))

    pool = pool_scores.Directions.of(x)
    within = shrunk((np.cov(x[:10].T, ddof=0) + np.cov(x[10:20].T, ddof=0)) * 10 / 18)
    around = shrunk(np.cov(x.T, ddof=0))
    to_classes = np.stack([[(row - m) @ within @ (row - m) for m in means] for row in x]).min(1)
    expected = to_classes - [(row - x.mean(0)) @ around @ (row - x.mean(0)) for row in x]
    np.testing.assert_allclose(pool_scores.relative(mixed, means, pool), expected, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(np.cov(pool.coordinates(x, 1.0).T) > 1e-3, np.eye(6) > 0)


def test_suggest(features):
    (table,) = run("suggest", features)
    assert [row[0] for row in table["rows"]] == list(pool_suggest.CHOOSERS)
    assert all(" ± " in cell for row in table["rows"] for cell in row[1:])


def test_runs_with_another_head_are_neither_taken_nor_shown(features):
    log = features / "out" / "suggest_ssl.jsonl"
    log.parent.mkdir()
    earlier = {"set": "easy", "case": ["random", "FixMatch"], "seed": 0, "values": [99.0] * 4}
    log.write_text(json.dumps(earlier) + "\n")
    (table,) = run("suggest_ssl", features)
    assert "SelfTraining" in table["title"]
    assert [row[0] for row in table["rows"]] == list(pool_suggest.WITH_DEFAULT)
    assert not any("99.0" in cell for row in table["rows"] for cell in row)


@pytest.mark.parametrize("slots", [7, 1])  # of `benchmarks features`, and with --plain
def test_suggest_with_the_default_method(slots):
    rng = np.random.default_rng(0)
    y = np.arange(40) % 3
    views = 3 * np.eye(3, 8)[y][:, None] + rng.normal(size=(40, slots, 8))
    test_y = np.array([0, 1, 2, 2])
    test = 3 * np.eye(3, 8)[test_y]
    data = feature_sets.FeatureSet("x", views.astype(np.float16), y, test, test_y)
    labels = np.where(np.arange(30) < 9, y[:30], -1)
    assert pool_suggest.default_error(data, np.arange(30), labels) == 0
    assert pool_suggest.default_error(data, np.arange(30), np.where(labels == 2, -1, labels)) == 0.5  # nobody knows two


def test_differences_are_paired_by_seed():
    errors = np.array([[10.0, 5.0], [30.0, 7.0]])
    assert pool_suggest.cells(errors, errors - errors) == ["20.0 ± 10.0", "6.0 ± 1.0"]
    assert pool_suggest.cells(errors, np.array([[-1.0, 2.0], [-3.0, 2.0]]))[0] == "20.0 ± 10.0, -2.0 ± 1.0"


def test_shares_and_curve(features):
    (shares,) = run("shares", features)
    skewed = next(row for row in shares["rows"] if row[1:3] == [10, "10:1"])
    assert mean(skewed[5]) < mean(skewed[3])
    (curve,) = run("curve", features)
    assert all(0 <= mean(row[-2]) <= 1 for row in curve["rows"])


def test_seconds_of_a_curve(features, monkeypatch):
    monkeypatch.setattr(pools, "CURVES", ((3, 5),))
    (table,) = run("curve_seconds", features)
    assert table["rows"][0][:3] == [3, 5, "15"]
    assert table["rows"][0][3] >= 0


def test_copies(features, monkeypatch):
    rng = np.random.default_rng(0)
    with zipfile.ZipFile(features / "images.zip", "w") as archive:
        for number in range(6):
            with archive.open(f"{number}.png", "w") as file:
                Image.fromarray(rng.integers(0, 255, (32, 32, 3), np.uint8)).save(file, "PNG")
    monkeypatch.setattr(pool_copies, "embed", lambda images, size: np.stack([np.asarray(i).ravel() for i in images]))
    tables = run("copies", features, "--images", str(features / "images.zip"), "--count", "5", "--sizes", "32")
    by_hash = next(row for row in tables[1]["rows"] if row[0] == "hash ≤ 10")
    assert by_hash[4] == 1.0  # brighter copies


def test_rates():
    same = np.zeros((2, 3, 3), bool)
    same[0] = np.eye(3, dtype=bool)
    same[1, 0, 0] = True
    same[1, 2, 1] = True
    assert pool_copies.rates(same) == [pytest.approx(1 / 3, abs=1e-3), pytest.approx(1e6 / 12, abs=0.1)]


def test_flips_and_skewed_pools():
    rng = np.random.default_rng(0)
    y = np.arange(100) % 5
    assert (feature_sets.flip(y, 0.2, 5, rng) != y).sum() == 20
    data = pool_features.Features("x", np.zeros((100, 2)), y, np.zeros((1, 2)), np.zeros(1, int))
    counts = np.bincount(y[pools.skewed(data, np.arange(100), "10:1", rng)])
    assert counts.tolist() == [20, 11, 6, 3, 2]


def test_mistakes_cost_one_line(features, capsys):
    assert main(["pools", "nonsense"]) == 2
    assert "nonsense is not a part of pools" in capsys.readouterr().err
    assert main(["pools", "unknown", "--features", str(features), "--sets", "missing"]) == 2
    assert "missing.npz does not exist" in capsys.readouterr().err
