"""The comparison of SSLClassifier with logistic regression: its differences, and that a killed study continues."""

import json

import numpy as np
from sklearn import datasets

from benchmarks import estimator
from benchmarks.__main__ import main


def test_errors_are_measured_over_rows_and_over_classes(tmp_path, monkeypatch):
    made = datasets.make_classification(n_samples=120, weights=[0.8, 0.2], random_state=0)
    monkeypatch.setattr(estimator, "SETS", {"made": lambda: made})
    words = ["estimator", "--labels", "4", "--seeds", "2", "--out", str(tmp_path / "e.md")]
    assert main(words) == 0
    runs = json.loads((tmp_path / "e.json").read_text())
    assert list(runs) == ["made/4/0", "made/4/1"]
    assert all(run["probe CV"] != run["probe CV, classes alike"] for run in runs.values())
    monkeypatch.setattr(estimator, "measure", None)  # which nothing could call
    assert main(words) == 0
    assert "| made | 4 | " in (tmp_path / "e.md").read_text()


def test_a_difference_has_its_standard_error():
    runs = [{"probe CV": 0.1, "SSLClassifier": 0.1 + gap} for gap in (0.0, 0.02, 0.04)]
    assert estimator.difference(runs) == f"+2.0 ± {2 / np.sqrt(3):.1f}"
    assert estimator.difference(runs[1:2]) == "+2.0"
    assert estimator.above(dict(enumerate(runs)), "SSLClassifier", "probe CV") == "67 %"


def test_drawn_labels_are_as_many_in_all_and_at_least_two_of_each_class():
    y = np.repeat([0, 1, 2], [90, 8, 2])
    counts = np.bincount(y[estimator.shown_rows(y, 10, 0, drawn=True)])
    assert counts.sum() == 30
    assert counts.min() == 2
    assert counts.max() > 20  # in proportion to the pool, but for the first two of each
    np.testing.assert_array_equal(np.bincount(y[estimator.shown_rows(y, 2, 0, drawn=False)]), [2, 2, 2])
