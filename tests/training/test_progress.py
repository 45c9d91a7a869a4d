import sys

import pytest

from vcc_infuse.training.progress import Progress, brief


def test_the_figures_worth_a_glance_in_per_cent():
    figures = {"error": 0.123, "ece": float("nan"), "pseudo_label_coverage": 0.5, "loss_labeled": 1.23456, "nll": 3.0}
    assert brief(figures) == "error 12.3 %, coverage 50.0 %, labeled 1.235"


@pytest.mark.parametrize(("evaluations", "expected"), [(10, 10), (100, 10), (3, 3)])
def test_away_from_a_terminal_there_are_about_ten_lines(capsys, monkeypatch, evaluations, expected):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False, raising=False)
    progress = Progress(steps=1000, start=0, shown=True)
    for number in range(1, evaluations + 1):
        progress.evaluated(round(number * 1000 / evaluations), {"error": 0.5})
    progress.close()
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == expected
    assert captured.err == ""


def test_silent_when_not_shown(capsys):
    progress = Progress(steps=10, start=0, shown=False)
    progress.advance({"error": 0.1})
    progress.evaluated(10, {"error": 0.1})
    progress.close()
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""
