import json

import numpy as np
import pytest

from vcc_infuse.cli.main import main

QUICK = "--steps 6 --eval_every 2 --batch_size 8 --unlabeled_ratio 2 --progress false --model SmallConv --model.width 4"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "digits"
    words = f"train --data digits --labels 40 --algorithm FlexMatch --selector INFUSE --selector.keep 0.5 {QUICK}"
    assert main([*words.split(), "--selector.every", "1", "--out", str(out)]) == 0
    return out


def test_a_run_leaves_what_its_report_needs(run):
    summary = json.loads((run / "summary.json").read_text())
    stored = np.load(run / "predictions.npz", allow_pickle=False)
    assert np.mean(stored["truth"] != stored["predicted"]) == pytest.approx(summary["error"])
    right = stored["truth"] == stored["predicted"]
    counts = np.histogram(stored["confidence"].astype(np.float64), bins=15, range=(0, 1))[0]
    assert counts.tolist() == summary["reliability"]["count"]
    assert right.sum() == round(
        sum(c * a for c, a in zip(counts, summary["reliability"]["accuracy"], strict=True) if a)
    )
    assert len(summary["threshold_per_class"]) == 10
    gallery = np.load(run / "gallery.npz", allow_pickle=False)
    assert gallery["mistakes_images"].shape == (24, 8, 8)
    assert (np.diff(gallery["helpful_score"]) <= 0).all()
    assert (np.diff(gallery["harmful_score"]) >= 0).all()
    assert "Most helpful" in (run / "report.html").read_text()


def test_one_run_is_drawn_in_its_folder(run, capsys):
    (run / "report.html").unlink()
    assert main(["report", str(run)]) == 0
    assert capsys.readouterr().out == f"report: {run}/report.html\n"
    assert (run / "report.html").read_text().startswith("<!doctype html>")


def test_several_runs_are_drawn_here(run, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.yaml").write_text("data: digits\n")
    assert main(["report", str(run), "other"]) == 0
    assert capsys.readouterr().out == "report: report.html\n"
    text = (tmp_path / "report.html").read_text()
    assert "2 runs compared" in text
    assert "other is unfinished: no evaluation yet." in text


def test_mistakes_cost_one_line(run, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    for words, wanted in (
        ([tmp_path / "empty"], "is not a run folder: it has no config.yaml"),
        ([tmp_path / "absent"], "is not a run folder"),
        ([run, "-o", tmp_path / "absent" / "page.html"], "there is no folder"),
        ([run, "-o", tmp_path / "file" / "page.html"], "there is no folder"),
        ([run, "-o", tmp_path / "empty"], "is a folder"),
        ([], "the following arguments are required: RUN"),
    ):
        assert main(["report", *map(str, words)]) == 2
        told = capsys.readouterr().err
        assert wanted in told
        assert told.count("\n") == 1
    assert [path.name for path in (tmp_path / "empty").iterdir()] == []


def test_no_report_unless_wanted(tmp_path):
    words = f"train --data digits --labels 40 {QUICK} --report false --out {tmp_path}/run"
    assert main(words.split()) == 0
    assert not (tmp_path / "run" / "report.html").exists()
    assert not (tmp_path / "run" / "coresets").exists()


def test_a_fault_in_the_drawing_costs_a_line_not_the_run(tmp_path, capsys, monkeypatch):
    def fail(*_):
        raise ZeroDivisionError("no ink")

    monkeypatch.setattr("vcc_infuse.report.write_report", fail)
    assert main(f"train --data digits --labels 40 {QUICK} --out {tmp_path}/run".split()) == 0
    assert "report not written: no ink" in capsys.readouterr().err
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["error"] > 0
