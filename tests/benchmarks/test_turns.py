"""Variants that take turns: times, memory, faults, and the pages made of them."""

import json
import time

import numpy as np
import pytest

from benchmarks.page import Part, Table, markdown, write
from benchmarks.turns import Comparison, take_turns


def busy(seconds):
    def work(_):
        end = time.process_time() + seconds
        while time.process_time() < end:
            pass

    return lambda: work


def test_times_and_ratios_of_known_work():
    found = take_turns("spinning", {"short": busy(0.02), "long": busy(0.06)}, rounds=3)
    assert found.base == "short"
    assert [len(found.seconds[name]) for name in ("short", "long")] == [3, 3]
    assert min(found.seconds["long"]) >= 0.06
    assert found.ratios("long")[1] > 1.5
    assert found.ratios("short") == [1, 1, 1]


@pytest.mark.slow
def test_each_variant_has_its_own_memory():
    def hungry():
        block = np.ones(30_000_000)
        return lambda _: block.sum()

    found = take_turns("memory", {"little": busy(0), "much": hungry}, rounds=1)
    assert found.memory["much"] - found.memory["little"] > 200


@pytest.mark.slow
def test_a_turn_may_report_its_own_time():
    found = take_turns("own", {"a": lambda: lambda number: 2.0 + number, "b": lambda: lambda number: 8.0}, 2, warmup=1)
    assert found.seconds == {"a": [3.0, 4.0], "b": [8.0, 8.0]}
    assert found.ratios("b")[1] == pytest.approx((8 / 3 + 8 / 4) / 2)


@pytest.mark.parametrize("when", ["made", pytest.param("used", marks=pytest.mark.slow)])
def test_a_fault_in_a_variant_is_shown(when):
    def broken():
        if when == "made":
            raise ValueError("no luck when made")
        return lambda _: [][0]

    with pytest.raises(RuntimeError, match="no luck when made" if when == "made" else "list index out of range"):
        take_turns("fault", {"fine": busy(0), "broken": broken}, 1)


def test_the_page_has_medians_and_quartiles(tmp_path):
    found = Comparison("steps", "old", {"old": [1.0, 2.0, 3.0], "new": [0.5, 0.5, 0.5]}, count=10)
    part = Part("some", "Some", [found], [Table("more", ("a", "b"), [(1, "x")])], ["A note."])
    text = write(part, tmp_path, "command")
    assert text == markdown(part, "command") == (tmp_path / "some.md").read_text()
    assert "| old | 200 (150–250) | 1 (1–1) | 1.00 |" in text
    assert "| new | 50 (50–50) | 0.25 (0.208–0.375) | 4.00 |" in text
    assert "| 1 | x |" in text
    stored = json.loads((tmp_path / "some.json").read_text())
    assert stored["comparisons"][0]["seconds"]["old"] == [1, 2, 3]
    assert stored["comparisons"][0]["summary"]["new"]["ratio"][1] == 0.25
