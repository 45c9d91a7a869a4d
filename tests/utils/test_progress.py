"""Progress: a bar that can be read on 80 columns, lines in time where there is no terminal, phases, evaluations."""

import os
import pty
import re
import subprocess
import sys
import termios
import threading
import time

import pytest

from vcc_infuse.utils import progress
from vcc_infuse.utils.progress import Progress, TrainingProgress, brief, duration, fitting, phase

NOTES = ["coverage 93.0 %", "precision 99.1 %", "labeled 0.002", "unlabeled 0.825", "calibration 0.092"]
SHOW = """
import sys
from vcc_infuse.utils.progress import Progress
total = int(sys.argv[1])
with Progress("training", total, "steps", start=total - 20) as shown:
    shown.bar.mininterval = 0
    for _ in range(20):
        shown.advance(1, {notes!r})
"""


def on_a_terminal(columns, total):
    """What a terminal of so many columns is sent, one string per state of the bar."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, columns))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    command = [sys.executable, "-c", SHOW.format(notes=NOTES), str(total)]
    run = subprocess.Popen(command, stdout=theirs, stderr=theirs, stdin=theirs, env=environment)
    os.close(theirs)
    sent = b""
    while True:
        try:
            piece = os.read(ours, 4096)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        sent += piece
    assert run.wait(timeout=120) == 0
    os.close(ours)
    text = re.sub(r"\x1b\[[0-9;]*[A-Z]", "", sent.decode())
    return [part for part in re.split(r"[\r\n]+", text) if part.strip()]


@pytest.mark.parametrize(("columns", "total", "note"), [(80, 600, True), (80, 2**20, True), (60, 2**20, False)])
def test_the_bar_fits_a_narrow_terminal(columns, total, note):
    states = on_a_terminal(columns, total)
    assert max(map(len, states)) <= columns
    assert all("training" in state and " left" in state for state in states)
    assert ("coverage 93.0 %" in states[-1]) == note
    bars = [state.split("|")[1] for state in states]
    assert min(map(len, bars)) >= 5


class Clock:
    """Seconds that pass only when told; phases look at it only when told."""

    def __init__(self, monkeypatch, terminal=False):
        self.now = 0.0
        monkeypatch.setattr(progress.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(progress, "TICK", 3600)
        for stream in (sys.stdout, sys.stderr):
            monkeypatch.setattr(stream, "isatty", lambda: terminal, raising=False)

    def pass_by(self, seconds, *phases):
        for _ in range(2 * seconds):
            self.now += 0.5
            for running in phases:
                running.tick()


def test_off_a_terminal_there_is_a_line_after_three_seconds_and_then_every_half_minute(monkeypatch, capsys):
    clock = Clock(monkeypatch)
    with Progress("decoding", 1000, "images") as shown:
        for _ in range(1000):
            clock.now += 0.125
            shown.advance()
    lines = capsys.readouterr().err.splitlines()
    left = {24: "2 min", 264: "2 min", 504: "62 s", 744: "32 s", 984: "2 s"}
    assert lines == [f"decoding: {n} of 1,000 images, 8 per second, {time} left" for n, time in left.items()]


def test_what_is_short_says_nothing(capsys):
    with Progress("decoding", 3, "images") as shown:
        shown.advance(3)
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


def test_a_phase_speaks_at_once_and_every_three_seconds(monkeypatch, capsys):
    clock = Clock(monkeypatch)
    with phase("reading photos") as reading:
        assert capsys.readouterr().out == "reading photos\n"
        clock.pass_by(7, reading)
    clock.pass_by(7, reading)
    assert capsys.readouterr().out == "reading photos: 3 s\nreading photos: 6 s\n"


def test_a_phase_runs_by_itself(monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False, raising=False)
    monkeypatch.setattr(progress, "TICK", 0.01)
    monkeypatch.setattr(progress, "FIRST", 0.02)
    with phase("reading photos"):
        time.sleep(0.3)
    assert "reading photos: 1 s\n" in capsys.readouterr().out
    time.sleep(0.1)
    assert "phase: reading photos" not in [thread.name for thread in threading.enumerate()]
    assert capsys.readouterr().out == ""


def test_on_a_terminal_a_phase_leaves_one_line(monkeypatch, capsys):
    clock = Clock(monkeypatch, terminal=True)
    with phase("reading photos") as reading:
        clock.pass_by(2, reading)
    assert capsys.readouterr().out == "reading photos\n\r\033[K  1 s\r\r\033[K  2 s\r\r\033[K"


def test_a_bar_or_another_phase_silences_a_phase(monkeypatch, capsys):
    clock = Clock(monkeypatch)
    with phase("reading photos") as reading:
        with Progress("decoding", 5, "images"):
            clock.pass_by(9, reading)
        with phase("hashing") as hashing:
            clock.pass_by(4, reading, hashing)
        clock.pass_by(4, reading)
    assert capsys.readouterr().out.splitlines() == [
        "reading photos",
        "hashing",
        "hashing: 3 s",
        "reading photos: 14 s",
        "reading photos: 16 s",
    ]


@pytest.mark.parametrize(("rank", "shown"), [("1", True), ("0", False)])
def test_only_the_first_process_tells_its_phases_and_only_if_wanted(monkeypatch, capsys, rank, shown):
    clock = Clock(monkeypatch)
    monkeypatch.setenv("RANK", rank)
    with phase("reading photos", shown=shown) as reading:
        clock.pass_by(9, reading)
    assert capsys.readouterr().out == ""


def test_threads_count_together(monkeypatch):
    Clock(monkeypatch)
    with Progress("decoding", 4000, "images") as shown:
        work = [threading.Thread(target=lambda: [shown.advance() for _ in range(1000)]) for _ in range(4)]
        for thread in work:
            thread.start()
        for thread in work:
            thread.join()
    assert shown.count == 4000


def test_the_first_notes_that_fit():
    assert fitting(["ab", "cde", "f"], 9) == "ab, cde"
    assert fitting(["ab", "cde", "f"], 3) == ""


@pytest.mark.parametrize(("seconds", "text"), [(0.2, "1 s"), (42.4, "42 s"), (600, "10 min"), (7200, "2.0 h")])
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_the_figures_worth_a_glance_in_per_cent():
    figures = {"error": 0.123, "ece": float("nan"), "pseudo_label_coverage": 0.5, "loss_labeled": 1.23456, "nll": 3.0}
    assert brief(figures) == ["error 12.3 %", "coverage 50.0 %", "labeled 1.235"]


def test_the_ece_is_that_of_the_confidence_in_use():
    assert brief({"ece": 0.2, "ece_calibrated": 0.05}) == ["ECE 5.0 %"]
    assert brief({"ece": 0.2, "evaluated_on": "validation", "error": 0.5}) == ["validation error 50.0 %", "ECE 20.0 %"]


@pytest.mark.parametrize(("evaluations", "expected"), [(10, 10), (100, 10), (3, 3)])
def test_away_from_a_terminal_about_ten_evaluations_are_told(capsys, monkeypatch, evaluations, expected):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False, raising=False)
    shown = TrainingProgress(steps=1000, start=0, shown=True)
    for number in range(1, evaluations + 1):
        shown.evaluated(round(number * 1000 / evaluations), {"error": 0.5})
    shown.close()
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == expected
    assert captured.err == ""


def test_slow_steps_are_told_in_time(capsys, monkeypatch):
    """A run whose tenth part takes hours says soon how long it will take."""
    clock = Clock(monkeypatch)
    shown = TrainingProgress(steps=1000, start=100, shown=True)
    for number in range(100, 104):
        clock.now += 20
        shown.step({"pseudo_label_coverage": 0.5} if shown.due(number) else None)
    captured = capsys.readouterr()
    assert captured.err.splitlines() == [
        "training: 101 of 1,000 steps, 0.05 per second, 5.0 h left, coverage 50.0 %",
        "training: 103 of 1,000 steps, 0.05 per second, 5.0 h left, coverage 50.0 %",
    ]
    clock.now += 30
    shown.evaluated(104, {"error": 0.25})
    assert capsys.readouterr().out == "step 104/1000: error 25.0 %\n"


def test_silent_when_not_shown(capsys):
    shown = TrainingProgress(steps=10, start=0, shown=False)
    shown.step({"error": 0.1})
    shown.evaluated(10, {"error": 0.1})
    shown.close()
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""
