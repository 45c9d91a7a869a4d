"""The tables say what the paper says, and every cell is a command that parses."""

import re
from pathlib import Path

import pytest

from vcc_infuse.cli.parsing import parse
from vcc_infuse.cli.train import CLASSES, base_options, make_parser
from vcc_infuse.errors import UserError
from vcc_infuse.reproduce.cell import Cell
from vcc_infuse.reproduce.scales import SCALES
from vcc_infuse.reproduce.table import Column, Row, Table
from vcc_infuse.reproduce.tables import TABLES, tables

EVERY = [(name, scale) for name in TABLES for scale in SCALES]


@pytest.mark.parametrize(("name", "scale"), EVERY)
def test_rows_compare_with_rows_that_exist(name: str, scale: str) -> None:
    (table,) = tables(name, scale)
    names = [row.name for row in table.rows]
    assert len(names) == len(set(names))
    assert all(row.base in names for row in table.rows if row.base)
    for column in table.columns:
        assert set(column.rows or ()) <= set(names)
        assert any(table.cell(row, column, 0) for row in table.rows)


@pytest.mark.parametrize("scale", SCALES)
def test_every_cell_is_a_train_command(scale: str) -> None:
    parser = make_parser()
    kinds = {cell.key.split('"seed"')[0]: cell for table in tables("all", scale) for cell in table.cells(1)}
    seen = set()
    for cell in kinds.values():
        own = tuple(sorted(k for k in cell.options if k.partition(".")[0] in ("algorithm", "calibrator", "selector")))
        values = tuple(str(cell.options[k]) for k in own)
        if (own, values) not in seen:  # the rest is the same for many
            seen.add((own, values))
            arguments = cell.arguments()
            options = parse(parser, arguments, base_options(arguments), CLASSES)
            assert options.algorithm.class_path.endswith(str(cell.options["algorithm"]))
    assert len(seen) > 20


def test_paper_scale_has_the_papers_columns() -> None:
    (main,) = tables("main", "paper")
    assert len(main.columns) == 9
    assert len(tables("coreset", "paper")[0].columns) == 14
    wide = [c.options["model.width"] for c in main.columns]
    assert wide == [2, 2, 2, 8, 8, 8, 2, 2, 2]
    assert {c.options["steps"] for c in main.columns} == {2**20}


def test_figures_of_the_paper_were_copied_right() -> None:
    """A sample read again by eye: a slip of a column would show."""
    (main,) = tables("main", "paper")
    by_name = {row.name: list(row.paper.values()) for row in main.rows}
    assert by_name["VCC-FixMatch"] == [6.84, 4.68, 4.27, 43.31, 27.76, 22.05, 3.12, 1.97, 1.95]
    assert by_name["SoftMatch"][3:6] == [49.64, 33.05, 27.26]
    (core,) = tables("coreset", "paper")
    assert next(r for r in core.rows if r.name == "FlexMatch + INFUSE").paper["SVHN, 250 labels, 20 % kept"] == 2.46
    (calibration,) = tables("calibration", "paper")
    flex = next(r for r in calibration.rows if r.name == "VCC-FlexMatch")
    assert flex.paper["CIFAR-100, 2500 labels"] == (25.26, 0.147, 0.324, 0.163)


def test_a_share_only_reaches_rows_with_a_selector() -> None:
    full, part = Row("full", {"algorithm": "FixMatch"}), Row("part", {"algorithm": "FixMatch", "selector": "Random"})
    table = Table("t", "T", (full, part), ())
    first, second = (Column(str(k), {"data": "digits", "labels": 20, "selector.keep": k}) for k in (0.1, 0.2))
    assert table.cell(full, first, 0) == table.cell(full, second, 0)  # one run serves both columns
    assert table.cell(part, first, 0) != table.cell(part, second, 0)


def test_names_are_safe_and_tell_cells_apart() -> None:
    one = Cell({"data": "../x/cifar10.zip", "labels": 40, "algorithm": "A", "calibrator": "VCC", "seed": 0, "lr": 0.1})
    other = Cell({**one.options, "lr": 0.2})
    assert re.fullmatch(r"[\w.-]+", one.name)
    assert one.name != other.name
    assert one.folder(Path("c")) == Path("c") / one.name


def test_unknown_table_is_named() -> None:
    with pytest.raises(UserError, match="table mian is unknown; choose main"):
        tables("mian", "smoke")
