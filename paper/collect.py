"""From finished cells to the entries of a table: means, deviations and paired differences over seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from vcc_infuse.calibrators import VCC

from .cell import Cell, Options
from .confidences import MOMENTS
from .table import Row, Table, TableColumn

LABELS = {
    "error": "error %", "error_head": "head error %", "error_tail": "tail error %", "ece": "ECE of softmax",
    "ece_calibrated": "ECE", "mce_calibrated": "MCE", "ace_calibrated": "ACE", "hours": "time ratio, median",
    "pseudo_label_coverage": "coverage %", "pseudo_label_precision": "precision %",
    "least_coverage": "least covered class %", "trusted_and_wrong": "wrong in the pool %",
    "trusted_error": "wrong of the trusted %", "seconds_train": "training s, median",
    "seconds_select": "selection s, median", "seconds": "seconds, median", "steps": "steps",
    "seconds_cpu": "CPU s, median", "cpu": "CPU time ratio, median",
    "passes": "network passes %",
    **{f"{name}_{moment}": f"{label}, {moment}" for name, label in
       (("auroc", "AUROC"), ("ece", "ECE"), ("precision", "precision"),
        ("precision_matched", "precision at the base's coverage")) for moment in MOMENTS},
}  # fmt: skip
# In the JSON file beside the metrics of the table.
FURTHER = ("pseudo_label_coverage", "pseudo_label_precision", "least_coverage", "seconds_train", "seconds_select")
RATIOS = {"hours": "hours", "cpu": "seconds_cpu"}
"""Metrics that are a ratio to the base, with the time that each compares."""
HIGHER_IS_BETTER = ("auroc", "precision", "pseudo_label_precision")  # first words of metrics
Summaries = dict[int, dict[str, Any]]
"""The summary of each finished seed."""


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds, the standard deviation, the 95 % confidence interval of the mean (Student's t), the median."""

    mean: float
    std: float
    low: float
    high: float
    seeds: int
    median: float


@dataclass(frozen=True)
class Entry:
    """One row in one column: our metrics, the paper's, and the difference of the first metric to the base."""

    row: Row
    column: TableColumn
    ours: dict[str, Estimate | None]
    paper: dict[str, float]
    difference: Estimate | None
    paper_difference: float | None
    hours: float
    by_seed: dict[int, float]
    further: dict[str, Estimate | None]
    to_reference: Estimate | None = None
    """The difference of the first metric to the row that the table compares all rows with."""
    wins: int | None = None
    """On how many of the shared seeds the first metric is better than that of the base."""
    metrics_by_seed: dict[str, dict[int, float]] = field(default_factory=dict)
    curves: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Metrics over the run by seed, of rows that measure them."""

    def to_json(self) -> dict[str, Any]:
        """The entry as JSON values."""
        return {
            "row": self.row.name,
            "options": recorded(self.row.options),
            "column": self.column.name,
            "setting": dict(self.column.options),
            "ours": {name: asdict(value) if value else None for name, value in self.ours.items()},
            "paper": self.paper,
            "difference": asdict(self.difference) if self.difference else None,
            "compared_with": self.row.base,
            "paper_difference": self.paper_difference,
            "wins": self.wins,
            "difference_to_reference": asdict(self.to_reference) if self.to_reference else None,
            "hours": self.hours,
            "by_seed": self.by_seed,
            "metrics_by_seed": self.metrics_by_seed,
            "further": {name: asdict(value) if value else None for name, value in self.further.items()},
            **({"curves": self.curves} if self.curves else {}),
        }


def recorded(options: Options) -> dict[str, Any]:
    """The options of a row, with where VCC starts: that default has changed, and with it what tables show."""
    start = {"calibrator.residual": VCC.residual} if options.get("calibrator") == "VCC" else {}
    return {**start, **options}


def collect(table: Table, seeds: int, cells: Path, first: int = 0) -> list[Entry]:
    """The entries of all planned cells, column by column; `first` is the first of the seeds."""
    entries: list[Entry] = []
    for column in table.columns:
        runs = {row.name: read(table, row, column, range(first, first + seeds), cells) for row in table.rows}
        entries += [entry(table, row, column, runs) for row in table.rows if table.cell(row, column, 0) is not None]
    return entries


def read(table: Table, row: Row, column: TableColumn, seeds: range, cells: Path) -> Summaries:
    """The summaries of the finished seeds, with three metrics computed from them and those of the row's part."""
    summaries = {}
    for seed in seeds:
        cell = table.cell(row, column, seed)
        summary = cell.summary(cells) if cell else None
        if cell is not None and summary is not None:
            computed = {
                "hours": (summary["seconds_train"] + summary["seconds_select"]) / 3600,
                "least_coverage": least_coverage(summary),
                "passes": passes(cell, summary),
            }
            summaries[seed] = {**summary, **computed, **summary.get("parts", {}).get(row.part, {})}
    return summaries


def passes(cell: Cell, summary: dict[str, Any]) -> float | None:
    """The passes of the training steps as a part of those of the full run; a backward pass counts as two.

    None for methods without unlabeled images. Lazy strong views are computed only where the pseudo label counts.
    """
    config = cell.config()
    options = config.train_config()
    algorithm = config.build("algorithm")
    if not algorithm.views or "steps" not in summary:
        return None
    ratio = options.unlabeled_ratio or algorithm.unlabeled_ratio
    strong = summary["pseudo_label_coverage"] if options.lazy else 1.0
    return float(summary["steps"] / options.steps * (3 + ratio * (1 + 3 * strong)) / (3 + 4 * ratio))


def least_coverage(summary: dict[str, Any]) -> float | None:
    """Coverage of the class with the lowest pseudo-label coverage: it drops first when a class is starved."""
    known = [value for value in summary.get("pseudo_label_coverage_per_class") or [] if value is not None]
    return min(known, default=None)


def entry(table: Table, row: Row, column: TableColumn, runs: dict[str, Summaries]) -> Entry:
    """One row of one column; `runs` has the summaries of every row."""
    ours = runs[row.name]
    base = runs.get(row.base or "", {})
    reference = runs.get(table.reference or "", {}) if row.name != table.reference else {}
    first = table.metrics[0]
    shown = [name for name in table.metrics if name not in row.meaningless]
    metrics = estimates(ours, [name for name in shown if name not in RATIOS])
    for name, seconds in RATIOS.items():
        if name in shown:
            metrics[name] = time_ratio(ours, base, seconds)
    return Entry(
        row=row,
        column=column,
        ours=metrics,
        paper=printed(table, row, column),
        difference=paired(values(ours, first), values(base, first)),
        paper_difference=printed_difference(table, row, column),
        hours=sum(summary["hours"] for summary in ours.values()),
        by_seed=values(ours, first),
        further=estimates(ours, FURTHER),
        to_reference=paired(values(ours, first), values(reference, first)),
        wins=wins(first, values(ours, first), values(base, first)),
        metrics_by_seed={name: values(ours, name) for name in shown},
        curves={seed: summary["curve"] for seed, summary in ours.items() if "curve" in summary},
    )


def estimates(summaries: Summaries, names: Sequence[str]) -> dict[str, Estimate | None]:
    """The mean of each metric over seeds."""
    return {name: estimate(list(values(summaries, name).values())) for name in names}


def wins(metric: str, ours: dict[int, float], base: dict[int, float]) -> int | None:
    """On how many shared seeds ours is better; None without any."""
    gaps = differences(ours, base)
    return sum(gap * better_sign(metric) > 0 for gap in gaps) if gaps else None


def better_sign(metric: str) -> int:
    """1 if a higher value is better, else −1."""
    return 1 if metric.startswith(HIGHER_IS_BETTER) else -1


def values(summaries: Summaries, name: str) -> dict[int, float]:
    """A metric by seed, rates in percent."""
    unit = 100.0 if LABELS[name].endswith("%") else 1.0
    return {seed: unit * summary[name] for seed, summary in summaries.items() if summary.get(name) is not None}


def time_ratio(ours: Summaries, base: Summaries, name: str = "hours") -> Estimate | None:
    """Training time over that of the base, seed by seed; `name` is the time."""
    shared = sorted(seed for seed in ours.keys() & base.keys() if name in ours[seed] and name in base[seed])
    return estimate([ours[seed][name] / base[seed][name] for seed in shared])


def printed(table: Table, row: Row, column: TableColumn) -> dict[str, float]:
    """The paper's numbers for this row in the column that ours stands for."""
    numbers = row.paper.get(column.stands_for or "", ())
    return dict(zip(table.metrics, numbers if isinstance(numbers, tuple) else (numbers,), strict=False))


def printed_difference(table: Table, row: Row, column: TableColumn) -> float | None:
    """The paper's difference of the first metric to the base."""
    base = next((other for other in table.rows if other.name == row.base), None)
    first = table.metrics[0]
    ours = printed(table, row, column).get(first)
    reference = printed(table, base, column).get(first) if base else None
    return None if ours is None or reference is None else ours - reference


def estimate(values: Sequence[float]) -> Estimate | None:
    """The mean of at least one value; a single one has no spread (NaN)."""
    if not values:
        return None
    mean = float(np.mean(values))
    count = len(values)
    if count == 1:
        return Estimate(mean, math.nan, math.nan, math.nan, 1, mean)
    std = float(np.std(values, ddof=1))
    half = float(stats.t.ppf(0.975, count - 1)) * std / math.sqrt(count)
    return Estimate(mean, std, mean - half, mean + half, count, float(np.median(values)))


def differences(ours: Mapping[int, float], base: Mapping[int, float]) -> list[float]:
    """Ours minus the base, for each seed that both have."""
    return [ours[seed] - base[seed] for seed in sorted(ours.keys() & base.keys())]


def paired(ours: Mapping[int, float], base: Mapping[int, float]) -> Estimate | None:
    """The mean of the differences on the same seeds."""
    return estimate(differences(ours, base))
