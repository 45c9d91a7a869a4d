"""What a table is: rows that differ in method, columns that differ in data, and the figures the paper printed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .cell import Cell

Options = Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """A method. `base` names the row its difference is taken to."""

    name: str
    options: Options
    base: str | None = None
    paper: Mapping[str, float | tuple[float, ...]] = field(default_factory=dict)
    """The paper's figures by column: the error in per cent, or one number for each figure of the table."""


@dataclass(frozen=True)
class Column:
    """A setting. Options of a selector or calibrator only reach rows that have one."""

    name: str
    options: Options
    stands_for: str | None = None
    """The paper's column it is compared with."""
    rows: tuple[str, ...] | None = None
    """The rows that are run, if not all."""


@dataclass(frozen=True)
class Table:
    """One table of the paper at one scale."""

    name: str
    title: str
    rows: tuple[Row, ...]
    columns: tuple[Column, ...]
    figures: tuple[str, ...] = ("error",)
    remark: str = ""

    def cell(self, row: Row, column: Column, seed: int) -> Cell | None:
        """The run behind an entry; None where it is not planned."""
        if column.rows is not None and row.name not in column.rows:
            return None
        plugs = {part for part in ("selector", "calibrator") if part in row.options}
        fitting = {k: v for k, v in column.options.items() if (p := part_of(k)) is None or p in plugs}
        return Cell({**fitting, **row.options, "seed": seed})

    def cells(self, seeds: int) -> Iterator[Cell]:
        """Every run of the table, seed by seed, so that a half-finished table is a whole one of fewer seeds."""
        for seed in range(seeds):
            for column in self.columns:
                for row in self.rows:
                    cell = self.cell(row, column, seed)
                    if cell is not None:
                        yield cell


def part_of(option: str) -> str | None:
    """`selector.keep` concerns the selector."""
    head, dot, _ = option.partition(".")
    return head if dot and head in ("selector", "calibrator") else None
