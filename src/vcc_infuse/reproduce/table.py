"""What a table is: rows that differ in method, columns that differ in data, and the figures the paper printed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .. import algorithms
from .cell import Cell

Options = Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """A method. `base` names the row its difference is taken to."""

    name: str
    options: Options
    base: str | None = None
    paper: Mapping[str, float | tuple[float, ...]] = field(default_factory=dict)
    """The paper's figures by column: the error in percent, or one number for each figure of the table."""


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


NAMES = {"PseudoLabel": "Pseudo-Label", "PiModel": "Π-model"}


def shown(name: str) -> str:
    """A method's name in a table."""
    return NAMES.get(name, name)


def method(name: str, paper: Mapping[str, Any] | None = None) -> Row:
    """An algorithm alone."""
    return Row(shown(name), {"algorithm": name}, None, paper or {})


def with_vcc(name: str, paper: Mapping[str, Any] | None = None, **options: Any) -> Row:
    """The same algorithm with VCC, compared with itself."""
    own = {f"calibrator.{key}": value for key, value in options.items()}
    return Row(f"VCC-{shown(name)}", {"algorithm": name, "calibrator": "VCC", **own}, shown(name), paper or {})


def pair(name: str, papers: Mapping[str, Mapping[str, Any]]) -> tuple[Row, Row]:
    """A method without and with VCC."""
    return method(name, papers.get(name)), with_vcc(name, papers.get(f"VCC-{name}"))


def vcc_variant(base: str, name: str, paper: Mapping[str, Any] | None = None, **options: Any) -> Row:
    """VCC with other options, compared with its default."""
    own = {f"calibrator.{key}": value for key, value in options.items()}
    full = f"VCC-{shown(base)}"
    return Row(f"{full} {name}", {"algorithm": base, "calibrator": "VCC", **own}, full, paper or {})


def takes_confidence(name: str) -> bool:
    """Whether a calibrator has something to do in this method."""
    return bool(getattr(algorithms, name).uses_confidence)


def figures(text: str, columns: tuple[str, ...], width: int = 1) -> dict[str, dict[str, Any]]:
    """The paper's numbers, a line a row: name, then `width` numbers a column; `-` where it has none."""
    papers: dict[str, dict[str, Any]] = {}
    for line in text.strip().splitlines():
        name, *words = line.split()
        groups = [words[i : i + width] for i in range(0, len(words), width)]
        known = {c: tuple(map(float, g)) for c, g in zip(columns, groups, strict=True) if "-" not in g}
        papers[name] = {c: g[0] if width == 1 else g for c, g in known.items()}
    return papers
