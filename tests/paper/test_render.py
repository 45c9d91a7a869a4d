"""Entries, recomputed by hand from made-up summaries, and the files they are written to."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from paper.collect import Entry, collect, paired, time_ratio
from paper.render import OVERALL_HEAD, markdown, overall, page, write_table
from paper.table import Row, Table, TableColumn

BASE = Row("FixMatch", {"algorithm": "FixMatch"}, None, {"paper": 5.0})
OURS = Row("VCC-<b>&|", {"algorithm": "FixMatch", "calibrator": "VCC"}, "FixMatch", {"paper": 4.0})
UNRUN = Row("MPL", {"algorithm": "MPL"}, "FixMatch", {"paper": 9.0})
COLUMN = TableColumn("digits", {"data": "digits", "labels": 20}, "paper")
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
    assert ours.difference.mean == pytest.approx((1 + 3 + 0) / 3)
    assert ours.paper_difference == pytest.approx(-1.0)
    assert ours.ours["hours"].mean == pytest.approx(0.5)
    assert base.hours == pytest.approx(3.0)
    assert unrun.ours["error"] is None
    assert unrun.difference is None
    assert ours.wins == 0  # worse, worse, equal
    assert base.wins is None
    assert ours.metrics_by_seed["ece"] == {0: 0.02, 1: 0.02, 2: 0.02}
    assert ours.further["seconds_train"].mean == pytest.approx(1800)
    assert ours.further["pseudo_label_precision"] is None  # no summary has it


def test_ratios_of_cpu_seconds_need_both_runs() -> None:
    ours, base = {0: {"seconds_cpu": 3.0}, 1: {"hours": 1.0}}, {0: {"seconds_cpu": 2.0}, 1: {"seconds_cpu": 2.0}}
    found = time_ratio(ours, base, "seconds_cpu")
    assert (found.median, found.seeds) == (1.5, 1)
    assert time_ratio(ours, base) is None


def test_fewer_seeds_are_a_smaller_table(cells: Path) -> None:
    _, ours, _ = collect(TABLE, 1, cells)
    assert ours.difference.seeds == 1


def test_a_metric_that_says_nothing_about_a_row_is_left_out(cells: Path) -> None:
    table = replace(TABLE, rows=(BASE, replace(OURS, meaningless=("ece",))))
    base, ours = collect(table, 3, cells)
    assert base.ours["ece"].mean == pytest.approx(0.02)
    assert "ece" not in ours.ours
    assert "ece" not in ours.metrics_by_seed
    assert " 13.33 ± 2.08 | – | 0.500 |" in markdown(table, [base, ours], [])


def test_markdown_is_one_table_and_says_where_the_sign_differs(cells: Path) -> None:
    text = markdown(TABLE, collect(TABLE, 3, cells), ["a fact"])
    lines = [line for line in text.splitlines() if line.startswith("|")]
    plain = [line.replace("\\|", "") for line in lines]
    assert len({line.count("|") for line in plain}) == 1  # as many cells in every line
    assert len(lines) == 2 + 3
    assert "the paper has -1.00, we have +1.33 (the interval includes zero)" in text
    assert "12.00 ± 2.00" in text
    assert "| FixMatch | 0 of 3 |" in text
    assert "| 0.500 |" in text  # the median of the ratios of time


def test_page_escapes_names_and_facts(cells: Path) -> None:
    text = page(TABLE, collect(TABLE, 3, cells), ["x < y"])
    assert "<p>x &lt; y</p>" in text
    assert "VCC-<b>" not in text
    assert "VCC-&lt;b&gt;&amp;|" in text
    assert "http:" not in text  # nothing is fetched
    assert "https:" not in text


class TableCells(HTMLParser):
    """The cells of the tables of a page as [tag, text], line by line."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[list[list[str]]] = []
        self.inside = False

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag == "tr":
            self.lines.append([])
        self.inside = tag in ("th", "td")
        if self.inside:
            self.lines[-1].append([tag, ""])

    def handle_endtag(self, tag: str) -> None:
        self.inside = False

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.lines[-1][-1][1] += data


def test_page_has_the_cells_of_the_markdown_table(cells: Path) -> None:
    entries = collect(TABLE, 3, cells)
    parser = TableCells()
    parser.feed(page(TABLE, entries, []))
    head, _, *lines = [line for line in markdown(TABLE, entries, []).splitlines() if line.startswith("|")]
    wanted = [[cell.replace("\\|", "|") for cell in re.split(r" \| ", line[2:-2])] for line in (head, *lines)]
    assert [[text for _, text in line] for line in parser.lines] == wanted
    assert [{tag for tag, _ in line} for line in parser.lines] == [{"th"}] + [{"td"}] * 3


def test_three_files_are_written(cells: Path, tmp_path: Path) -> None:
    entries = collect(TABLE, 3, cells)
    write_table(tmp_path / "new" / "t-smoke", TABLE, entries, ["a fact"], "the command")
    assert {path.name for path in (tmp_path / "new").iterdir()} == {
        f"t-smoke.{kind}" for kind in ("md", "html", "json")
    }
    assert (tmp_path / "new" / "t-smoke.md").read_text() == markdown(TABLE, entries, ["a fact"])
    stored = json.loads((tmp_path / "new" / "t-smoke.json").read_text())
    assert stored["command"] == "the command"
    base, ours, unrun = stored["entries"]
    assert ours["by_seed"] == pytest.approx({"0": 11.0, "1": 15.0, "2": 14.0})
    assert (ours["difference"]["mean"], ours["paper_difference"]) == pytest.approx((4 / 3, -1.0))
    assert (base["compared_with"], ours["compared_with"]) == (None, "FixMatch")
    assert unrun["difference"] is None


PLAIN, VARIANT = Row("FixMatch", {}), Row("ours", {}, "FixMatch")
COLUMNS = [TableColumn(name, {}) for name in "abc"]


def entry(row: Row, column: TableColumn, errors: dict[int, float], base: dict[int, float]) -> Entry:
    return Entry(row, column, {}, {}, paired(errors, base) if row.base else None, None, 0.0, errors, {})


def entries(columns: list[TableColumn]) -> list[Entry]:
    base = {0: 10.0, 1: 12.0, 2: 14.0}
    ours = [{0: 9.0, 1: 12.0}, {0: 10.5, 1: 12.5, 2: 14.5}, {2: 11.0}]
    found = []
    for column, errors in zip(columns, ours, strict=False):
        found += [entry(PLAIN, column, base, {}), entry(VARIANT, column, errors, base)]
    return found


def test_every_column_has_the_same_weight_and_every_run_counts() -> None:
    # means −0.5, +0.5, −3; runs: better 9 and 11, equal 12, worse all three of the second column
    assert overall(entries(COLUMNS)) == [OVERALL_HEAD, ["ours", "FixMatch", "3", "-1.00", "2", "1", "3"]]


def test_more_is_better_for_auroc() -> None:
    assert overall(entries(COLUMNS), None, "auroc_end")[1][3:] == ["-1.000", "3", "1", "2"]


def test_few_columns_are_not_summarized() -> None:
    assert overall(entries(COLUMNS[:2])) == []
