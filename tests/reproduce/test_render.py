"""Entries are recomputed by hand from made-up summaries."""

import json
from pathlib import Path

import pytest

from vcc_infuse.reproduce.collect import collect
from vcc_infuse.reproduce.render import markdown, page
from vcc_infuse.reproduce.table import Column, Row, Table

BASE = Row("FixMatch", {"algorithm": "FixMatch"}, None, {"paper": 5.0})
OURS = Row("VCC-<b>&|", {"algorithm": "FixMatch", "calibrator": "VCC"}, "FixMatch", {"paper": 4.0})
UNRUN = Row("MPL", {"algorithm": "MPL"}, "FixMatch", {"paper": 9.0})
COLUMN = Column("digits", {"data": "digits", "labels": 20}, "paper")
TABLE = Table("t", "A title", (BASE, OURS, UNRUN), (COLUMN,), ("error", "ece", "hours"))


@pytest.fixture
def cells(tmp_path: Path) -> Path:
    errors = {BASE.name: [0.10, 0.12, 0.14], OURS.name: [0.11, 0.15, 0.14]}
    for row in (BASE, OURS):
        for seed, error in enumerate(errors[row.name]):
            cell = TABLE.cell(row, COLUMN, seed)
            assert cell is not None
            folder = cell.folder(tmp_path)
            folder.mkdir()
            seconds = 3600 * (1 if row is BASE else 0.5)
            summary = {"error": error, "ece": 0.02, "seconds_train": seconds, "seconds_select": 0.0}
            (folder / "summary.json").write_text(json.dumps(summary))
    return tmp_path


def test_figures_and_differences(cells: Path) -> None:
    base, ours, unrun = collect(TABLE, 3, cells)
    assert base.ours["error"].mean == pytest.approx(12.0)
    assert ours.gap.mean == pytest.approx((1 + 3 + 0) / 3)
    assert ours.paper_gap == pytest.approx(-1.0)
    assert ours.ours["hours"].mean == pytest.approx(0.5)
    assert base.hours == pytest.approx(3.0)
    assert unrun.ours["error"] is None
    assert unrun.gap is None
    assert ours.further["seconds_train"].mean == pytest.approx(1800)
    assert ours.further["pseudo_label_precision"] is None  # no summary has it


def test_fewer_seeds_are_a_smaller_table(cells: Path) -> None:
    _, ours, _ = collect(TABLE, 1, cells)
    assert ours.gap.seeds == 1


def test_markdown_is_one_table_and_says_where_the_sign_differs(cells: Path) -> None:
    text = markdown(TABLE, collect(TABLE, 3, cells), ["a fact"])
    lines = [line for line in text.splitlines() if line.startswith("|")]
    plain = [line.replace("\\|", "") for line in lines]
    assert len({line.count("|") for line in plain}) == 1  # as many cells in every line
    assert len(lines) == 2 + 3
    assert "the paper has -1.00, we have +1.33 (the interval includes zero)" in text
    assert "12.00 ± 2.00" in text


def test_page_escapes_names(cells: Path) -> None:
    text = page(TABLE, collect(TABLE, 3, cells), ["x < y"])
    assert "VCC-<b>" not in text
    assert "VCC-&lt;b&gt;&amp;|" in text
    assert "http" not in text  # nothing is fetched
