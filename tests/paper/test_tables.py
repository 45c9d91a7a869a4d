"""The tables have the paper's numbers, and the options of every cell build a run."""

import math
import re
from operator import attrgetter
from pathlib import Path

import numpy as np
import pytest

from paper import scales
from paper.cell import Cell
from paper.scales import SCALES
from paper.table import Row, Table, TableColumn
from paper.tables import ABSENT, TABLES, tables
from vcc_infuse.errors import UserError
from vcc_infuse.run import prepare
from vcc_infuse.run_config import PARTS
from vcc_infuse.training.presets import preset_options
from vcc_infuse.training.trainer import Trainer

EVERY = [(name, scale) for name in TABLES for scale in SCALES if name not in ABSENT.get(scale, ())]


@pytest.mark.parametrize(("name", "scale"), EVERY)
def test_rows_compare_with_rows_that_exist(name: str, scale: str) -> None:
    (table,) = tables(name, scale)
    names = [row.name for row in table.rows]
    assert len(names) == len(set(names))
    assert all(row.base in names for row in table.rows if row.base)
    for column in table.columns:
        assert set(column.rows or ()) <= set(names)
        assert any(table.cell(row, column, 0) for row in table.rows)


def test_only_abc_with_vcc_has_no_ece_of_r() -> None:
    """Its answers are those of another head than the one whose confidence the VAE learned."""
    (table,) = tables("imbalance", "frozen")
    assert {row.name: row.meaningless for row in table.rows if row.meaningless} == {
        "FixMatch + ABC + VCC": ("ece_calibrated",)
    }


def make_trainer(cell: Cell) -> Trainer:
    config = cell.config()
    return Trainer(*(config.build(part) for part in PARTS), config.train_config())


@pytest.mark.parametrize("scale", SCALES)
def test_the_options_of_every_cell_build_a_run(scale: str) -> None:
    cells = list(dict.fromkeys(cell for table in tables("all", scale) for cell in table.cells(1)))
    assert len(cells) > 50
    for cell in cells:
        config = cell.config()
        trainer = make_trainer(cell)
        assert cell.on_bank == (scale == "frozen")
        for name, value in cell.options.items():
            part, dot, argument = name.partition(".")
            if part in PARTS and not dot:
                assert type(getattr(trainer, part)).__name__ == value.rpartition(".")[2]
            elif part in PARTS:
                stored = attrgetter(argument)(getattr(trainer, part))
                if argument == "base":
                    stored = type(stored).__name__
                assert stored == (tuple(value) if isinstance(value, list) else value), name
            elif dot and part != "subset":
                owner = config.bank if part == "bank" else config.data.long_tail
                assert getattr(owner, argument) == value, name
            elif hasattr(trainer.config, name):
                assert getattr(trainer.config, name) == value, name
            elif not dot:
                assert getattr(config.data, name) == value, name


@pytest.mark.parametrize(
    ("data", "method", "expected"),
    [
        ("svhn", "MixMatch", {"weight": 250.0}),  # Berthelot et al., NeurIPS 2019
        ("stl10", "CoMatch", {"contrast_weight": 5.0}),  # Li et al., ICCV 2021
        ("svhn", "FreeMatch", {"min_threshold": 0.9, "max_threshold": 0.95}),  # Wang et al., ICLR 2023
    ],
)
def test_a_cell_at_paper_scale_follows_the_protocol_of_its_dataset_wherever_the_files_are(
    data: str, method: str, expected: dict[str, float], tmp_path: Path
) -> None:
    (tmp_path / f"{data}.zip").touch()
    row = Row(method, {"algorithm": method, "selector": "INFUSE"})
    table = Table("t", "T", (row,), ())
    cell = table.cell(row, scales.column("paper", data, 250, 0.1), 0)
    config = cell.config(str(tmp_path))
    assert config.data.data == str(tmp_path / f"{data}.zip")
    algorithm = config.build("algorithm")
    assert {name: getattr(algorithm, name) for name in expected} == expected
    assert config.build("selector").every == 40 * 1024
    options = config.train_config()
    protocol = preset_options("paper", data)
    names = set(protocol) - {"model", "eval_every"}
    assert {name: getattr(options, name) for name in names} == {name: protocol[name] for name in names}
    assert config.build("model").depth == protocol["model"]["init_args"]["depth"]
    assert config.data.flip is (False if data == "svhn" else None)
    frozen = table.cell(row, scales.column("frozen", data, 250), 0).config().build("algorithm")
    assert all(getattr(frozen, name) != value for name, value in expected.items())


def test_every_split_of_the_smoke_scale_loads() -> None:
    cells = [cell for table in tables("all", "smoke") for cell in table.cells(1)]
    splits = {repr(cell.config().data): cell for cell in cells}
    balanced, tail = (prepare(cell.config()).data for cell in splits.values())
    assert np.bincount(balanced.labeled_y).tolist() == [4] * 10
    counts = np.bincount(tail.labeled_y)
    assert (counts.max(), counts.min()) == (20, 5)  # first=20, gamma=4


def test_every_cell_of_a_column_is_evaluated_equally_often() -> None:
    (table,) = tables("coreset", "frozen")
    for cell in table.cells(1):
        trainer = make_trainer(cell)
        if trainer.steps:  # LinearProbe has none
            assert math.ceil(trainer.steps / trainer.config.eval_every) == 1, cell.name


def test_scratch_trains_a_small_network_in_single_precision_beside_its_baselines() -> None:
    for table in tables("all", "scratch"):
        comparable = table.metrics[0] == "error"
        assert (table.reference == "Supervised") == comparable, table.name
        for cell in table.cells(1):
            options = cell.options
            assert options["precision"] == "fp32"
            assert options["steps"] == 3000
            assert options["batch_size"] == 16
            assert not cell.on_bank
            assert options.get("flip", True) == (options["data"] == "fashion_mnist"), cell.name
        if comparable:
            for column in table.columns:
                baselines = [table.cell(row, column, 0) for row in table.rows[:2]]
                assert [cell.options["algorithm"] for cell in baselines] == ["Supervised", "LinearProbe"]


def test_the_probe_on_pixels_has_a_network_of_its_own() -> None:
    (table,) = tables("readings", "scratch")
    probe = next(row for row in table.rows if row.name == "LinearProbe on pixels")
    options = table.cell(probe, table.columns[0], 0).options
    assert {name: value for name, value in options.items() if name.startswith("model")} == {
        "model": "MLP", "model.hidden": [],
    }  # fmt: skip


def test_the_readings_of_vcc_differ_in_what_their_names_say() -> None:
    (table,) = tables("readings", "scratch")
    vcc = {row.name: row.options for row in table.rows if row.options.get("calibrator") == "VCC"}
    assert vcc["VCC-FixMatch"] == {"algorithm": "FixMatch", "calibrator": "VCC"}
    assert vcc["VCC-FixMatch, starts at ½, −c², staged"]["calibrator.fusion"] == "minus_square"
    assert vcc["VCC-FixMatch, starts at ½, −c², staged"]["calibrator.start"] == "staged"
    assert vcc["VCC-FixMatch, r̃ selects"]["calibrator.reconstruct"] == "none"
    assert len({str(options) for options in vcc.values()}) == len(vcc) == 12


def test_tables_share_their_runs_at_scratch_scale() -> None:
    runs = {table.name: set(table.cells(1)) for table in tables("all", "scratch")}
    assert runs["calibration"] <= runs["main"]
    assert len(runs["readings"] & runs["main"]) == 4 * 7  # baselines, FixMatch, VCC-FixMatch and the three controls


def test_tables_share_their_runs_at_frozen_scale() -> None:
    """The same method in the same column is one run, in whichever table it stands."""
    runs = {table.name: set(table.cells(1)) for table in tables("all", "frozen")}
    assert runs["calibration"] <= runs["main"]
    assert runs["stl10"] <= runs["main"]
    for name, new in (("calibrators", 16), ("ablation-scores", 3 * 4), ("ablation-vae", 3 * 3)):
        assert len(runs[name] - runs["main"]) == new, name


@pytest.mark.parametrize("base", ["FixMatch", "FlexMatch", "SimMatch"])
def test_vcc_stands_beside_its_controls(base: str) -> None:
    (table,) = tables("main", "frozen")
    rows = {row.name: row for row in table.rows}
    five = [base, f"VCC-{base}", f"{base} + temperature", f"{base} + balance", f"RobustVCC-{base}"]
    assert all(rows[name].base == base for name in five[1:])
    column = next(column for column in table.columns if column.options["data"] == "stl10")
    parts = [make_trainer(table.cell(rows[name], column, 0)) for name in five]
    assert [type(part.calibrator).__name__ for part in parts] == [
        "Softmax", "VCC", "HardViewTemperature", "Softmax", "RobustVCC"
    ]  # fmt: skip
    assert [type(part.algorithm).__name__ for part in parts] == [base, base, base, "Balance", base]
    assert type(parts[3].algorithm.base).__name__ == base


def test_only_the_papers_methods_stand_beside_its_numbers() -> None:
    for table in tables("all", "paper"):
        for row in table.rows:
            if row.paper and row.options.get("calibrator") in ("VCC", "RobustVCC"):
                assert row.options["calibrator"] == "VCC", row.name
            if row.paper and "selector" in row.options:
                assert "Robust" not in row.options["selector"], row.name
                assert "Oracle" not in row.options["selector"], row.name


def test_lazy_strong_views_take_more_steps_for_the_same_cost() -> None:
    (table,) = tables("coreset", "frozen")
    rows = {row.name: row for row in table.rows}
    column = next(column for column in table.columns if column.name == "CIFAR-10, 250 labels, 40 % kept")
    short, lazy = (make_trainer(table.cell(rows[f"FixMatch + {name}"], column, 0))
                   for name in ("FullShort", "FullShort, lazy, 4/3 of the steps"))  # fmt: skip
    assert (short.steps, lazy.steps) == (240, 320)
    assert lazy.config.lazy
    assert not short.config.lazy


def test_paper_scale_has_the_papers_columns() -> None:
    (main,) = tables("main", "paper")
    assert len(main.columns) == 9
    assert len(tables("coreset", "paper")[0].columns) == 14
    widths = [Cell({**column.options, "seed": 0}).config().build("model").width for column in main.columns]
    assert widths == [2, 2, 2, 8, 8, 8, 2, 2, 2]
    assert {c.options["eval_every"] for c in main.columns} == {5 * 1024}
    assert {c.options["steps"] for c in main.columns} == {2**20}


def test_numbers_of_the_paper_were_copied_right() -> None:
    """A sample, checked by eye: numbers shifted by a column would show."""
    (main,) = tables("main", "paper")
    by_name = {row.name: list(row.paper.values()) for row in main.rows}
    assert by_name["VCC-FixMatch"] == [6.84, 4.68, 4.27, 43.31, 27.76, 22.05, 3.12, 1.97, 1.95]
    assert by_name["SoftMatch"][3:6] == [49.64, 33.05, 27.26]
    (core,) = tables("coreset", "paper")
    assert next(r for r in core.rows if r.name == "FlexMatch + INFUSE").paper["SVHN, 250 labels, 20 % kept"] == 2.46
    (calibration,) = tables("calibration", "paper")
    flex = next(r for r in calibration.rows if r.name == "VCC-FlexMatch")
    assert flex.paper["CIFAR-100, 2500 labels"] == (25.26, 0.147, 0.324, 0.163)


def test_the_kept_fraction_only_applies_to_rows_with_a_selector() -> None:
    full, part = Row("full", {"algorithm": "FixMatch"}), Row("part", {"algorithm": "FixMatch", "selector": "Random"})
    table = Table("t", "T", (full, part), ())
    first, second = (TableColumn(str(k), {"data": "digits", "labels": 20, "selector.keep": k}) for k in (0.1, 0.2))
    assert table.cell(full, first, 0) == table.cell(full, second, 0)  # one run serves both columns
    assert table.cell(part, first, 0) != table.cell(part, second, 0)


def test_names_are_safe_and_unique() -> None:
    one = Cell({"data": "../x/cifar10.zip", "labels": 40, "algorithm": "A", "calibrator": "VCC", "seed": 0, "lr": 0.1})
    other = Cell({**one.options, "lr": 0.2})
    assert re.fullmatch(r"[\w.-]+", one.name)
    assert one.name != other.name
    assert one.folder(Path("c")) == Path("c") / one.name


@pytest.mark.parametrize(
    ("name", "remedy"), [("mian", "did you mean main?"), ("7", f"choose {', '.join(TABLES)} or all")]
)
def test_unknown_table_is_named(name: str, remedy: str) -> None:
    with pytest.raises(UserError, match=re.escape(f"table {name} is unknown; {remedy}")):
        tables(name, "smoke")
