"""Charts hold the metrics of the run folder, and Plotly itself accepts them."""

import json

import numpy as np
import plotly.graph_objects as go
import pytest
from sklearn.metrics import confusion_matrix
from tests.helpers.folders import NASTY, make_run

from vcc_infuse.report.charts import calibration, training
from vcc_infuse.report.page import sections
from vcc_infuse.report.read import Run, read_run, read_runs


def lines_of(folder, name="metrics.jsonl"):
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def charts_of(runs):
    for section in sections(runs):
        yield from section.all_charts


def test_curves_show_every_evaluation(folder):
    (trace,) = training.error_curve([read_run(folder, "one")]).data
    lines = lines_of(folder)
    assert trace["y"] == pytest.approx([100 * line["error"] for line in lines])
    assert trace["meta"]["steps"] == [10, 20, 30, 40]
    assert trace["meta"]["seconds"] == [1.5, 3.0, 4.5, 6.0]


def test_every_loss_term_has_a_line(folder):
    chart = training.loss_curves([read_run(folder, "one")])
    assert {t["name"]: t["y"] for t in chart.data} == {
        "labeled": [1, 1 / 2, 1 / 3, 1 / 4],
        "unlabeled": [2, 1, 2 / 3, 0.5],
    }
    assert "labeled of one goes from 1.000 to 0.250" in chart.alt


def test_reliability_shows_accuracy_and_counts_of_each_bin(folder):
    stored = lines_of(folder)[-1]["reliability_calibrated"]
    accuracy, counts, _ = calibration.calibrated_diagram([read_run(folder, "one")]).data
    assert counts["y"] == stored["count"]
    for shown, value in zip(accuracy["y"], stored["accuracy"], strict=True):
        assert shown == (None if value is None else pytest.approx(100 * value))
    assert accuracy["x"][0] == pytest.approx(100 / 30)


def test_the_abstain_curve_is_the_error_of_the_surest_answers(folder):
    columns = np.load(folder / "predictions.npz")
    coarse = dict(columns) | {"calibrated": columns["calibrated"].round(1)}  # several answers per confidence
    np.savez(folder / "predictions.npz", **coarse)
    curve, cuts = calibration.abstain_curve(read_run(folder, "one")).data
    wrong = coarse["truth"] != coarse["predicted"]
    for x, y, least in zip(curve["x"], curve["y"], curve["customdata"], strict=True):
        answered = coarse["calibrated"] >= least
        assert x == pytest.approx(100 * answered.mean())
        assert y == pytest.approx(100 * wrong[answered].mean())
    assert len(curve["x"]) == len(set(coarse["calibrated"].tolist()))
    assert (cuts["x"], cuts["y"], cuts["text"]) == ([70, 40], [10, 10], ["0.5", "0.8"])
    assert cuts["error_y"]["array"] == pytest.approx([9, 9])
    assert cuts["error_y"]["arrayminus"] == pytest.approx([6, 6])
    note = calibration.abstain_curve(read_run(folder, "one")).note
    assert note == "Suggested: --abstain 0.5: 70 % answered, 10.0 % of the answers wrong (95 % interval 4 % to 19 %)."


def test_without_a_calibrator_there_is_nothing_after_calibration(folder):
    stored = [{**line, "reliability_calibrated": line["reliability"]} for line in lines_of(folder)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in stored))
    (folder / "summary.json").unlink()
    plain, other = read_run(folder, "plain"), read_run(make_run(folder.parent / "two"), "two")
    assert calibration.calibrated_diagram([plain]) is None
    assert calibration.softmax_diagram([plain]).title == "Confidence (softmax)"
    assert [trace["name"] for trace in training.ece_curves([plain]).data] == ["softmax"]
    assert calibration.calibrated_diagram([plain, other]) is not None
    assert calibration.softmax_diagram([plain, other]).title == "Before calibration (softmax)"


def test_confusion_agrees_with_scikit_learn(folder):
    run = read_run(folder, "one")
    stored = np.load(folder / "predictions.npz")
    expected = confusion_matrix(stored["truth"], stored["predicted"])
    (trace,) = calibration.confusion_matrix(run).data
    assert [[int(cell or 0) for cell in row] for row in trace["text"]] == expected.tolist()
    assert trace["customdata"] == expected.tolist()
    share = 100 * confusion_matrix(stored["truth"], stored["predicted"], normalize="true")
    assert np.allclose(trace["z"], share, rtol=0, atol=0.005001)
    assert f"{np.trace(expected)} of {expected.sum()} predictions are correct" in calibration.confusion_matrix(run).alt


def test_histograms_count_correct_and_wrong(folder):
    stored = np.load(folder / "predictions.npz")
    correct = stored["truth"] == stored["predicted"]
    traces = calibration.confidence_histogram(read_run(folder, "one")).data
    for trace, (column, members) in zip(
        traces, [(c, m) for c in ("confidence", "calibrated") for m in (correct, ~correct)], strict=True
    ):
        slow = [sum(int(0.05 * b <= v < 0.05 * b + 0.05) for v in stored[column][members].tolist()) for b in range(20)]
        assert trace["customdata"] == slow
        assert sum(trace["y"]) == pytest.approx(100)


def test_kept_share_of_a_class_is_kept_over_present(folder):
    line = lines_of(folder, "selections.jsonl")[-1]
    (trace,) = training.kept_bars([read_run(folder, "one")]).data
    pool = 50 / 0.4
    slow = [
        100 * 50 * a / (pool * b)
        for a, b in zip(line["kept_share_per_class"], line["pool_share_per_class"], strict=True)
    ]
    assert trace["y"] == pytest.approx(slow)


def test_score_histogram(folder):
    everything, kept = training.score_histogram(read_run(folder, "one")).data
    assert (everything["x"], everything["y"], kept["y"]) == ([-0.5, 0.5], [70, 30], [20, 30])


def test_thresholds_and_pseudo_labels_per_class(folder):
    last = lines_of(folder)[-1]
    (bars,) = training.last_bars([read_run(folder, "one")], "threshold_per_class").data
    assert bars["y"] == pytest.approx([100 * v for v in last["threshold_per_class"]])
    (bars,) = training.last_bars([read_run(folder, "one")], "pseudo_label_precision_per_class").data
    assert bars["x"] == list(range(1, 10)), "a class without pseudo labels has no precision"
    (heat,) = training.heatmap_over_time(read_run(folder, "one"), "threshold_per_class").data
    assert np.allclose(np.array(heat["z"])[:, -1], bars_of(last["threshold_per_class"]), rtol=0, atol=0.005001)


def bars_of(values):
    return [100 * v for v in values]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"evaluations": 1},
        {"evaluations": 0},
        {"classes": [f"class {i}" for i in range(100)]},
        {"classes": NASTY},
        {"extras": False},
        {"finished": False},
        {"selector": False},
    ],
    ids=str,
)
def test_plotly_accepts_every_chart(tmp_path, options):
    for chart in charts_of([read_run(make_run(tmp_path / "run", **options), "run")]):
        go.Figure(data=chart.data, layout=chart.layout)  # raises on a property that does not exist
        assert chart.alt.endswith(".")
        assert any(letter.isdigit() for letter in chart.alt), "the sentence has numbers"
        assert "nan" not in chart.alt


def test_runs_with_different_classes_share_one_axis(tmp_path):
    names = (["cat", "dog"], ["dog", "cow", "hen"], [f"c{i}" for i in range(4)])
    runs = read_runs([make_run(tmp_path / str(i), classes=c, seed=i) for i, c in enumerate(names)])
    chart = training.last_bars(runs, "threshold_per_class")
    assert chart.layout["xaxis"]["ticktext"] == ["cat", "dog", "cow", "hen", "c0", "c1", "c2", "c3"]
    assert [trace["x"] for trace in chart.data] == [[0, 1], [1, 2, 3], [4, 5, 6, 7]]
    assert len({trace["marker"]["color"] for trace in chart.data}) == 3
    for chart in charts_of(runs):
        go.Figure(data=chart.data, layout=chart.layout)


def test_the_learning_curve_goes_on_to_twice_the_labels():
    ends = {"now": {"value": 0.2, "low": 0.15, "high": 0.3}, "at_double": {"value": 0.15, "low": 0.1, "high": 0.17}}
    law = {"floor": 0.1, "factor": 2.0, "exponent": 1.0, "sizes": [10, 20], "errors": [0.31, 0.19]}
    curve = {"labels": 20, "text": "less error", **ends, **law}
    run = Run("one", summary={"learning_curve": curve})
    chart = training.learning_curve(run)
    go.Figure(data=chart.data, layout=chart.layout)
    fitted, measured, double = chart.data
    assert (fitted["x"][0], fitted["x"][-1]) == (10, pytest.approx(40))
    assert (fitted["y"][0], fitted["y"][-1]) == (pytest.approx(30), pytest.approx(15))
    assert (measured["x"], measured["y"]) == ([10, 20], [31, 19])
    assert (double["x"], double["y"]) == ([20, 40], [20, 15])
    assert double["error_y"]["array"] == pytest.approx([10, 2])
    assert double["error_y"]["arrayminus"] == pytest.approx([5, 5])
    assert chart.alt == "one: less error."
    (section,) = [section for section in sections([run]) if section.key == "labels"]
    assert section.parts[0].text == "Less error."
    assert training.learning_curve(Run("two", summary={"learning_curve": {"text": "too few"}})) is None
    assert "labels" not in [section.key for section in sections([Run("old", summary={})])]


def test_unknown_values_leave_gaps():
    lines = [{"step": 1, "seconds": 1.0, "error": None}, {"step": 2, "seconds": 2.0, "error": float("nan")},
             {"step": 3, "seconds": 3.0, "error": 0.25}]  # fmt: skip
    chart = training.error_curve([Run("r", metrics=lines)])
    assert chart.data[0]["y"] == [None, None, 25.0]
    assert "error of r is 25.0 %" in chart.alt
    assert training.error_curve([Run("r", metrics=lines[:2])]) is None
