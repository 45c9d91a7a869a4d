"""From finished cells to the entries of a table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .statistics import Estimate, estimate, paired
from .table import Column, Row, Table

LABELS = {
    "error": "error %", "error_head": "head error %", "error_tail": "tail error %", "ece": "ECE of softmax",
    "ece_calibrated": "ECE", "mce_calibrated": "MCE", "ace_calibrated": "ACE", "hours": "time ratio",
    "pseudo_label_coverage": "coverage %", "pseudo_label_precision": "precision %",
    "least_coverage": "least covered class %", "seconds_train": "training s", "seconds_select": "selection s",
}  # fmt: skip


FURTHER = ("pseudo_label_coverage", "pseudo_label_precision", "least_coverage", "seconds_train", "seconds_select")
"""What the JSON file tells besides the table's own figures."""


@dataclass(frozen=True)
class Entry:
    """A row in a column: our figures by name, the paper's, and the difference of the first figure to the base."""

    row: Row
    column: Column
    ours: dict[str, Estimate | None]
    paper: dict[str, float]
    gap: Estimate | None
    paper_gap: float | None
    hours: float
    by_seed: dict[int, float]
    further: dict[str, Estimate | None]


def collect(table: Table, seeds: int, cells: Path) -> list[Entry]:
    """Entries of all planned cells, column by column."""
    found: list[Entry] = []
    for column in table.columns:
        figures = {row.name: read(table, row, column, seeds, cells) for row in table.rows}
        found += [entry(table, row, column, figures) for row in table.rows if table.cell(row, column, 0) is not None]
    return found


def read(table: Table, row: Row, column: Column, seeds: int, cells: Path) -> dict[int, dict[str, Any]]:
    """Summaries of the finished seeds."""
    summaries = {}
    for seed in range(seeds):
        cell = table.cell(row, column, seed)
        summary = cell.summary(cells) if cell else None
        if summary is not None:
            hours = (summary["seconds_train"] + summary["seconds_select"]) / 3600
            summaries[seed] = {**summary, "hours": hours, "least_coverage": least_coverage(summary)}
    return summaries


def least_coverage(summary: dict[str, Any]) -> float | None:
    """Coverage of the class with the fewest pseudo labels: the first sign of starvation."""
    known = [share for share in summary.get("pseudo_label_coverage_per_class") or [] if share is not None]
    return min(known, default=None)


def entry(table: Table, row: Row, column: Column, figures: dict[str, dict[int, dict[str, Any]]]) -> Entry:
    """One row of one column."""
    mine, base = figures[row.name], figures.get(row.base or "", {})
    first = table.figures[0]
    paper = printed(table, row, column)
    base_row = next((other for other in table.rows if other.name == row.base), None)
    reference = printed(table, base_row, column).get(first) if base_row else None
    gap = paper[first] - reference if reference is not None and first in paper else None
    ours = {name: estimate(list(values(mine, name).values())) for name in table.figures if name != "hours"}
    if "hours" in table.figures:
        ours["hours"] = ratio(mine, base)
    return Entry(
        row, column, ours, paper, paired(values(mine, first), values(base, first)), gap,
        sum(summary["hours"] for summary in mine.values()), values(mine, first),
        {name: estimate(list(values(mine, name).values())) for name in FURTHER},
    )  # fmt: skip


def values(summaries: dict[int, dict[str, Any]], name: str) -> dict[int, float]:
    """A figure by seed, rates in percent."""
    unit = 100.0 if LABELS[name].endswith("%") else 1.0
    return {seed: unit * s[name] for seed, s in summaries.items() if s.get(name) is not None}


def ratio(mine: dict[int, dict[str, Any]], base: dict[int, dict[str, Any]]) -> Estimate | None:
    """Training time over the base's, seed by seed."""
    return estimate([mine[s]["hours"] / base[s]["hours"] for s in sorted(mine.keys() & base.keys())])


def printed(table: Table, row: Row, column: Column) -> dict[str, float]:
    """What the paper printed for this row and the column ours stands for."""
    found = row.paper.get(column.stands_for or "")
    if found is None:
        return {}
    numbers = found if isinstance(found, tuple) else (found,)
    return dict(zip(table.figures, numbers, strict=False))
