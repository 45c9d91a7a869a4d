"""What a table is: rows that differ in method, columns that differ in data, and the numbers the paper printed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .cell import Cell, Options

PaperNumbers = Mapping[str, float | tuple[float, ...]]
"""By column: the error in percent, or one number per metric of the table."""
OPTIONAL_PARTS = ("selector", "calibrator")
CORE = ("FixMatch", "FlexMatch", "SimMatch")
DISPLAY_NAMES = {"PseudoLabel": "Pseudo-Label", "PiModel": "Π-model"}


@dataclass(frozen=True)
class Row:
    """A method. `base` names the row it is compared with."""

    name: str
    options: Options
    base: str | None = None
    paper: PaperNumbers = field(default_factory=dict)
    keep_factor: float = 1.0
    """The fraction that the column keeps is multiplied by it."""
    part: str | None = None
    """The part of the summary that has its metrics, if several rows share a run."""
    meaningless: tuple[str, ...] = ()
    """Metrics that say nothing about it, and are left out."""


@dataclass(frozen=True)
class TableColumn:
    """A setting. Options of a selector or calibrator only apply to rows that have one."""

    name: str
    options: Options
    stands_for: str | None = None
    """The paper's column it is compared with."""
    rows: tuple[str, ...] | None = None
    """The rows that are run, if not all."""


@dataclass(frozen=True)
class Table:
    """One table at one scale."""

    name: str
    title: str
    rows: tuple[Row, ...]
    columns: tuple[TableColumn, ...]
    metrics: tuple[str, ...] = ("error",)
    remark: str = ""
    reference: str | None = None
    """A row that every row is compared with, besides its base."""

    def cell(self, row: Row, column: TableColumn, seed: int) -> Cell | None:
        """The run of a row in a column; None if it is not planned."""
        if column.rows is not None and row.name not in column.rows:
            return None
        # A row with a network of its own has none of the column's arguments for another one.
        missing = {part for part in OPTIONAL_PARTS if part not in row.options} | ({"model"} & set(row.options))
        shared = {name: value for name, value in column.options.items() if name.partition(".")[0] not in missing}
        options = {**shared, **row.options, "seed": seed}
        if "selector.keep" in options:
            options["selector.keep"] = round(row.keep_factor * options["selector.keep"], 4)
        if "eval_every" in options and "selector" in options:
            # A selector shortens the run: it is evaluated as many times as the full run.
            options["eval_every"] = math.ceil(options["eval_every"] * options.get("selector.keep", 1))
        return Cell(options)

    def cells(self, seeds: int, first: int = 0) -> Iterator[Cell]:
        """Every run of the table, seed by seed: a half-finished grid is a complete table of fewer seeds."""
        for seed in range(first, first + seeds):
            for column in self.columns:
                for row in self.rows:
                    cell = self.cell(row, column, seed)
                    if cell is not None:
                        yield cell


def display_name(algorithm: str) -> str:
    """A method's name in a table."""
    return DISPLAY_NAMES.get(algorithm, algorithm)


def method(algorithm: str, paper: PaperNumbers | None = None) -> Row:
    """An algorithm alone."""
    return Row(display_name(algorithm), {"algorithm": algorithm}, None, paper or {})


def with_vcc(algorithm: str, paper: PaperNumbers | None = None) -> Row:
    """The algorithm with VCC, compared with the algorithm alone."""
    name = display_name(algorithm)
    return Row(f"VCC-{name}", {"algorithm": algorithm, "calibrator": "VCC"}, name, paper or {})


def controls(algorithm: str) -> tuple[Row, ...]:
    """What VCC has to beat: the algorithm with a temperature alone, with balanced classes alone, and with RobustVCC."""
    name = display_name(algorithm)
    return (
        Row(f"{name} + temperature", {"algorithm": algorithm, "calibrator": "HardViewTemperature"}, name),
        Row(f"{name} + balance", {"algorithm": "Balance", "algorithm.base": algorithm}, name),
        Row(f"RobustVCC-{name}", {"algorithm": algorithm, "calibrator": "RobustVCC"}, name),
    )


def all_five(algorithm: str, papers: Mapping[str, PaperNumbers]) -> tuple[Row, ...]:
    """The algorithm alone, with the paper's VCC, and the three controls."""
    ours = with_vcc(algorithm, papers.get(f"VCC-{algorithm}"))
    return method(algorithm, papers.get(algorithm)), ours, *controls(algorithm)


def core_methods(papers: Mapping[str, PaperNumbers]) -> tuple[Row, ...]:
    """Supervised, then FixMatch, FlexMatch and SimMatch, each in five rows."""
    return method("Supervised"), *(row for name in CORE for row in all_five(name, papers))


def names(rows: Iterable[Row]) -> tuple[str, ...]:
    """Their names."""
    return tuple(row.name for row in rows)


def vcc_variant(algorithm: str, name: str, paper: PaperNumbers | None = None, **arguments: Any) -> Row:
    """VCC with other arguments, compared with its defaults."""
    options = {f"calibrator.{key}": value for key, value in arguments.items()}
    base = f"VCC-{display_name(algorithm)}"
    return Row(f"{base} {name}", {"algorithm": algorithm, "calibrator": "VCC", **options}, base, paper or {})


def paper_numbers(text: str, columns: tuple[str, ...], width: int = 1) -> dict[str, PaperNumbers]:
    """The paper's numbers by row. Each line is a name, then `width` numbers per column; `-` if there are none."""
    papers: dict[str, PaperNumbers] = {}
    for line in text.strip().splitlines():
        name, *words = line.split()
        groups = [words[i : i + width] for i in range(0, len(words), width)]
        known = {
            column: tuple(map(float, group)) for column, group in zip(columns, groups, strict=True) if "-" not in group
        }
        papers[name] = {column: group[0] if width == 1 else group for column, group in known.items()}
    return papers
