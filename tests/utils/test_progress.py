"""How far something is: a bar that can be read on 80 columns, and lines in time where there is no terminal."""

import os
import pty
import re
import subprocess
import sys
import termios
import threading

import pytest

from vcc_infuse.utils import progress
from vcc_infuse.utils.progress import Progress, duration, fitting

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
    """Seconds that pass only when told."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(progress.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(sys.stderr, "isatty", lambda: False, raising=False)


def test_off_a_terminal_there_is_a_line_every_half_minute(monkeypatch, capsys):
    clock = Clock(monkeypatch)
    with Progress("decoding", 1000, "images") as shown:
        for _ in range(1000):
            clock.now += 0.125
            shown.advance()
    lines = capsys.readouterr().err.splitlines()
    left = ["2 min", "65 s", "35 s", "5 s"]
    assert lines == [f"decoding: {240 * n} of 1,000 images, 8 per second, {left[n - 1]} left" for n in range(1, 5)]


def test_what_is_short_says_nothing(capsys):
    with Progress("decoding", 3, "images") as shown:
        shown.advance(3)
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


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
