"""Simulated people: what their answers cost, when an error counts as reached, and a whole study on drawn features."""

import json

import numpy as np
import pytest

from benchmarks import human_minutes
from benchmarks.__main__ import main
from benchmarks.human_minutes import (
    OurSession,
    by_margin,
    by_typiclust,
    fit_regression,
    one_at_a_time,
    ours,
    read_pool,
)
from benchmarks.minutes_page import minutes_to, quartiles, shown
from benchmarks.people import Person, Spent

NOTHING = {"right": 0, "wrong": 0, "new_classes": 0, "grids": 0, "tiles": 0, "corrections": 0}


@pytest.fixture(scope="module")
def features(tmp_path_factory):
    """Three classes, drawn, with seven views of the training images."""
    folder = tmp_path_factory.mktemp("features")
    rng = np.random.default_rng(0)
    y = np.arange(360) % 3
    x = rng.normal(size=(3, 24))[y] + 0.8 * rng.normal(size=(360, 24))
    views = np.repeat(x[:240, None], 7, 1).astype(np.float16)
    np.savez(folder / "drawn-224.npz", train=views, train_y=y[:240], test=x[240:], test_y=y[240:])
    return folder


def test_single_images_cost_more_without_a_right_suggestion():
    person = Person(np.array([0, 1, 1]), 0)
    person.ask(0, None)
    assert person.spent.minutes() == pytest.approx((3.8 + 0.3 + 3) / 60)
    person.ask(1, 0)
    assert person.spent.minutes() == pytest.approx((2 * (3.8 + 0.3) + 2 * 3) / 60)
    person.ask(2, 1)
    assert person.spent.minutes() == pytest.approx((2 * 4.1 + 2.1 + 2 * 3) / 60)
    assert person.labels.tolist() == [0, 1, 1]


def test_a_grid_costs_by_tile_and_correction_and_one_in_twenty_is_overlooked():
    person = Person(np.repeat([0, 1], 2000), 0)
    person.ask(0, None)
    person.ask(2000, None)
    before = person.spent.minutes()
    clicked = person.look(np.arange(4000), 0)
    corrections = int(clicked.sum())
    assert not clicked[:2000].any()
    assert 0.93 < corrections / 2000 < 0.97
    assert (person.labels[2000:] == 0).sum() == 2000 - corrections
    assert person.spent.minutes() - before == pytest.approx((3 + 4000 * 0.25 + 1.5 * corrections) / 60)
    assert person.spent.minutes(0.6) - person.spent.minutes(0.1) == pytest.approx(4000 * 0.5 / 60)


def test_an_error_is_reached_only_if_it_stays():
    errors = [0.5, 0.1, 0.3, 0.2, 0.05, 0.19]
    curve = [{**NOTHING, "right": 10 * place, "error": error} for place, error in enumerate(errors)]
    assert minutes_to(curve, 0.2) == pytest.approx(Spent(right=30).minutes())
    assert minutes_to(curve, 0.1) == np.inf
    assert minutes_to(curve, 0.6) == 0


def test_not_reached_is_larger_than_any_minutes():
    assert quartiles([1, np.inf, 3, 2, np.inf]) == [2, 3, np.inf]
    assert quartiles([1, 2]) == [1, 2, 2]
    assert shown([1, np.inf, 3, 2, np.inf]) == "3.0 (2.0–…)"
    assert shown([1, np.inf, np.inf]) == "not reached (1 of 3)"
    assert shown([np.inf, np.inf]) == "not reached"


def test_the_regression_is_that_of_scikit_learn(features):
    from sklearn.linear_model import LogisticRegression

    pool = read_pool(features / "drawn-224.npz")
    for classes in (2, 3):
        labels = np.where((np.arange(240) < 12) & (pool.y < classes), pool.y, -1)
        known = labels >= 0
        model = LogisticRegression(C=30, max_iter=100).fit(pool.x[known], labels[known])
        probs, error = fit_regression(pool, labels)
        assert error == pytest.approx((model.predict(pool.test_x) != pool.test_y).mean())
        assert (probs.argmax(1) == model.predict(pool.x)).all()


def test_ways_of_labeling_label(features, monkeypatch):
    monkeypatch.setattr(human_minutes, "MOST_LABELS", 30)
    pool = read_pool(features / "drawn-224.npz")
    for pick in (by_margin, by_typiclust):
        assert one_at_a_time(pool, 0, pick)["curve"][-1]["labels"] == 30
    with_grids = ours(pool, 0, grids=True)
    assert with_grids["curve"][-1]["grids"] > 0
    assert with_grids["claims"]
    assert ours(pool, 0, grids=False)["curve"][-1]["grids"] == 0


def test_audit_images_cost_time_and_teach_nothing(features):
    session = OurSession(read_pool(features / "drawn-224.npz"), 0)
    session.singles(40)
    audited = np.flatnonzero((session.person.labels >= 0) & session.reserve)
    assert len(audited) > 2
    assert (session.taught[audited] == -1).all()
    assert (session.taught[~session.reserve] == session.person.labels[~session.reserve]).all()
    assert session.person.spent.right + session.person.spent.wrong == session.labeled


def test_the_study_writes_a_page_and_goes_on_where_it_stopped(features, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(human_minutes, "MOST_LABELS", 20)
    monkeypatch.setattr(human_minutes, "BULK_AT", (0.5, 1.0))
    out = tmp_path / "new"
    words = ["human_minutes", "--features", str(features), "--sets", "drawn", "--seeds", "0", "--out", str(out)]
    words += ["--cells", str(tmp_path / "cells")]
    assert main([*words, "--rows", "random", "ours"]) == 0
    page = (out / "human_minutes.md").read_text()
    assert "simulated, with assumed constants" in page
    assert len(json.loads((out / "human_minutes.json").read_text())["minutes"]) == 8
    assert len(json.loads((out / "human_minutes.json").read_text())["bulk"]) == 2
    capsys.readouterr()
    monkeypatch.setattr(human_minutes, "ROWS", dict.fromkeys(("random", "ours")))  # nothing can run any more
    assert main([*words, "--rows", "random", "ours"]) == 0
    assert (out / "human_minutes.md").read_text() == page


def test_mistakes_cost_one_line(features, capsys):
    base = ["human_minutes", "--features", str(features), "--out", "x"]
    assert main([*base, "--sets", "missing"]) == 2
    assert "missing-224.npz" in capsys.readouterr().err
    assert main([*base, "--sets", "drawn", "--rows", "best"]) == 2
    assert "--rows takes" in capsys.readouterr().err
