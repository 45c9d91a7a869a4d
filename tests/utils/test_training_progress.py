import sys

import pytest

from vcc_infuse.utils import progress as clockwork
from vcc_infuse.utils.progress import TrainingProgress, brief


def test_the_figures_worth_a_glance_in_per_cent():
    figures = {"error": 0.123, "ece": float("nan"), "pseudo_label_coverage": 0.5, "loss_labeled": 1.23456, "nll": 3.0}
    assert brief(figures) == ["error 12.3 %", "coverage 50.0 %", "labeled 1.235"]


@pytest.mark.parametrize(("evaluations", "expected"), [(10, 10), (100, 10), (3, 3)])
def test_away_from_a_terminal_about_ten_evaluations_are_told(capsys, monkeypatch, evaluations, expected):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False, raising=False)
    progress = TrainingProgress(steps=1000, start=0, shown=True)
    for number in range(1, evaluations + 1):
        progress.evaluated(round(number * 1000 / evaluations), {"error": 0.5})
    progress.close()
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == expected
    assert captured.err == ""


def test_slow_steps_are_told_in_time(capsys, monkeypatch):
    """A run whose tenth part takes hours says after half a minute how long it will take."""
    now = [0.0]
    monkeypatch.setattr(clockwork.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False, raising=False)
    progress = TrainingProgress(steps=1000, start=100, shown=True)
    for number in range(100, 104):
        now[0] += 20
        progress.step({"pseudo_label_coverage": 0.5} if progress.due(number) else None)
    captured = capsys.readouterr()
    assert captured.err.splitlines() == [
        "training: 102 of 1,000 steps, 0.05 per second, 5.0 h left, coverage 50.0 %",
        "training: 104 of 1,000 steps, 0.05 per second, 5.0 h left, coverage 50.0 %",
    ]
    now[0] += 40
    progress.evaluated(104, {"error": 0.25})
    assert capsys.readouterr().out == "step 104/1000: error 25.0 %\n"


def test_silent_when_not_shown(capsys):
    progress = TrainingProgress(steps=10, start=0, shown=False)
    progress.step({"error": 0.1})
    progress.evaluated(10, {"error": 0.1})
    progress.close()
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""
