"""The figures on the pages of methods show what the tables say."""

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("table_figure", ROOT / "tools" / "table_figure.py")
figures = importlib.util.module_from_spec(spec)
sys.modules["table_figure"] = figures
spec.loader.exec_module(figures)


def cell(row, column, error, *, options, to_probe=None, difference=None, against=None):
    def around(value):
        return None if value is None else {"mean": value, "low": value - 1, "high": value + 1}

    return {
        "row": row, "column": column, "options": options, "setting": {"model.input_size": 224},
        "ours": {"error": {"mean": error, "seeds": 5}}, "compared_with": against,
        "difference": around(difference), "difference_to_reference": around(to_probe),
    }  # fmt: skip


@pytest.fixture
def table(tmp_path, monkeypatch):
    """Two settings: FixMatch against the probe, VCC against FixMatch, and a variant of VCC below it."""
    cells = []
    for column, shift in (("A", 0.0), ("B", 2.0)):
        fix = {"algorithm": "FixMatch"}
        vcc = fix | {"calibrator": "VCC"}
        staged = vcc | {"calibrator.start": "staged"}
        cells += [
            cell("LinearProbe", column, 30.0, options={"algorithm": "LinearProbe"}),
            cell("FixMatch", column, 26 + shift, options=fix, to_probe=shift - 4),
            cell("VCC-FixMatch", column, 27 + shift, options=vcc, to_probe=shift - 3, difference=1, against="FixMatch"),
            cell("VCC, other", column, 99.0, options=staged, to_probe=9.0, difference=73.0, against="FixMatch"),
        ]
    path = tmp_path / "frozen" / "main-frozen.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"entries": cells}))
    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    figures.entries_of.cache_clear()
    return path


def dots(svg):
    """(x of the zero line, x of the large dots from top to bottom)."""
    (zero,) = re.findall(r'<line x1="([\d.]+)" x2="\1"', svg)
    return float(zero), [float(x) for x in re.findall(r'<circle cx="([\d.]+)" cy="\d+" r="5"', svg)]


def test_an_algorithm_is_drawn_against_the_probe_and_lower_errors_stand_on_the_left(table):
    text = figures.section("algorithm", "FixMatch")
    assert "**FixMatch against LinearProbe**: heads on frozen features at 224 px, 5 seeds" in text
    assert "26.0 % (−4.0)" in text
    assert "28.0 % (−2.0)" in text
    zero, (first, second) = dots(text)
    assert first < second < zero
    assert (zero - first) / (zero - second) == pytest.approx(2, rel=0.01)


def test_a_calibrator_is_drawn_against_its_base_and_variants_are_not_its_row(table):
    text = figures.section("calibrator", "VCC")
    assert "**VCC-FixMatch against FixMatch**" in text
    assert "27.0 % (+1.0)" in text
    assert "99.0" not in text
    zero, (first, second) = dots(text)
    assert zero < first == second


def test_without_a_row_the_page_says_so(table):
    assert "No table compares it" in figures.section("algorithm", "ReMixMatch")
    assert figures.section("model", "MLP") == ""


def test_the_overview_is_sorted_and_averages_over_shared_settings(table):
    svg = figures.overview(table)
    names = re.findall(r'text-anchor="end"[^>]*>([^<]+)<', svg)
    assert names == ["FixMatch", "VCC-FixMatch", "VCC, other"]
    assert ">−3.0<" in svg
    assert ">−2.0<" in svg


@pytest.mark.parametrize("path", sorted(ROOT.glob("results/*/main-*.svg")), ids=lambda path: path.parent.name)
def test_committed_figures_are_those_of_their_tables(path):
    """`python tools/table_figure.py TABLE.json` draws one anew."""
    figures.entries_of.cache_clear()
    assert path.read_text() == figures.overview(path.with_suffix(".json")) + "\n"


@pytest.mark.parametrize(
    ("option", "name"), [("algorithm", "FixMatch"), ("calibrator", "Evidence"), ("selector", "INFUSE")]
)
def test_the_tables_of_the_repository_have_the_methods(option, name):
    figures.entries_of.cache_clear()
    assert "<svg" in figures.section(option, name)
