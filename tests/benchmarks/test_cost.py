"""`python -m benchmarks cost`: the arithmetic of its ratios, and its mistakes."""

import json
import statistics
from pathlib import Path

import pytest

from benchmarks.__main__ import main

SMALL = "--depth 0 --width 2 --size 8 --batch_size 4 --unlabeled_ratio 2 --rounds 3 --algorithm FlexMatch".split()


def test_ratios_follow_from_the_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "cost.json"
    words = ["cost", *SMALL, "--calibrator", "VCC", "--selector", "INFUSE", "--keep", "0.25", "-o", str(out)]
    assert main(words) == 0
    found = json.loads(out.read_text())
    pairs = zip(found["seconds"]["with"], found["seconds"]["without"], strict=True)
    assert found["ratio"] == pytest.approx(statistics.median(a / b for a, b in pairs))
    assert found["whole_with"] == pytest.approx(0.25 * (1 + found["selection_share"]))
    assert found["whole"] == pytest.approx(0.25 * found["ratio"] * (1 + found["selection_share"]))
    assert 0 < found["selection_share"] < 1
    assert "whole run at 25 %" in capsys.readouterr().out


def test_a_longer_interval_makes_selection_cheaper(tmp_path: Path) -> None:
    shares = []
    for interval in (100, 10_000):
        out = tmp_path / f"{interval}.json"
        main(["cost", *SMALL, "--selector", "INFUSE", "--interval", str(interval), "-o", str(out)])
        shares.append(json.loads(out.read_text())["selection_share"])
    assert shares[0] > 5 * shares[1]


@pytest.mark.parametrize(
    "words", [["--selector", "INFUSED"], ["--rounds", "0"], ["--calibrator", "VC"], ["--pool", "0"]]
)
def test_mistakes_cost_one_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cost", *words]) == 2
    line = capsys.readouterr().err
    assert words[0] in line
    assert line.count("\n") == 1
