"""A table as text cells, and from these as Markdown and HTML."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from vcc_infuse.report.page import render
from vcc_infuse.runs.folder import versions
from vcc_infuse.utils.io import write_json, write_text

from .collect import LABELS, Entry, Estimate, better_sign, differences
from .table import Table

OVERALL_HEAD = ["method", "compared with", "columns", "mean Δ", "runs better", "equal", "worse"]
# Fewer columns need no summary.
MIN_COLUMNS = 3


class Section(NamedTuple):
    """One column of the table: text cells, with a head line first, and remarks."""

    name: str
    lines: list[list[str]]
    remarks: list[str]


def sections(table: Table, entries: Sequence[Entry]) -> list[Section]:
    """One section per column, and one for all columns together."""
    parts = []
    for column in table.columns:
        shown = [entry for entry in entries if entry.column is column]
        lines = [head(table, shown), *(line(table, entry, shown) for entry in shown)]
        parts.append(Section(column.name, lines, remarks(shown)))
    together = overall(entries, table.reference, table.metrics[0])
    return [*parts, Section("Over all columns", together, [])] if together else parts


def head(table: Table, entries: Sequence[Entry]) -> list[str]:
    """The column heads; the paper's only where it has numbers."""
    metrics = [f"{LABELS[name]}{suffix}" for name in table.metrics for suffix in suffixes(name, entries)]
    paper = ["Δ paper"] if has_paper_difference(entries) else []
    reference = [f"Δ to {table.reference} [95 % interval]"] if table.reference else []
    change = LABELS[table.metrics[0]].removesuffix(" %")
    compared = [*paper, f"Δ {change} [95 % interval]", "compared with", "wins", *reference]
    return ["method", *metrics, *compared, "seeds", "hours", "by seed"]


def suffixes(name: str, entries: Sequence[Entry]) -> list[str]:
    """Two heads for a metric that the paper has, too; else one."""
    return [", paper", ", ours"] if any(name in entry.paper for entry in entries) else [""]


def has_paper_difference(entries: Sequence[Entry]) -> bool:
    """Whether the paper's differences need a column."""
    return any(entry.paper_difference is not None for entry in entries)


def line(table: Table, entry: Entry, entries: Sequence[Entry]) -> list[str]:
    """The cells of one method."""
    cells = [entry.row.name]
    for name in table.metrics:
        digits = precision(name)
        if len(suffixes(name, entries)) == 2:
            cells.append(number(entry.paper.get(name), digits))
        cells.append(spread(entry.ours.get(name), digits, LABELS[name].endswith("median")))
    if has_paper_difference(entries):
        cells.append(number(entry.paper_difference, 2, sign=True))
    digits = precision(table.metrics[0])
    cells += [interval(entry.difference, digits), entry.row.base or "–", won(entry)]
    cells += [interval(entry.to_reference, digits)] if table.reference else []
    by_seed = " ".join(f"{value:.{digits - 1}f}" for value in entry.by_seed.values())
    return [*cells, str(len(entry.by_seed)), f"{entry.hours:.3f}", by_seed]


def precision(metric: str) -> int:
    """Digits after the point."""
    if metric == "steps":
        return 0
    return 2 if LABELS[metric].endswith("%") else 1 if metric.startswith("seconds") else 3


def won(entry: Entry) -> str:
    """On how many of the shared seeds the row is better than its base."""
    return f"{entry.wins} of {entry.difference.seeds}" if entry.difference and entry.wins is not None else "–"


def number(value: float | None, digits: int, sign: bool = False) -> str:
    """A number, or a dash."""
    return "–" if value is None or math.isnan(value) else f"{value:{'+' if sign else ''}.{digits}f}"


def spread(value: Estimate | None, digits: int, median: bool = False) -> str:
    """Mean ± standard deviation, or the median."""
    if value is None:
        return "–"
    if median:
        return f"{value.median:.{digits}f}"
    around = "" if math.isnan(value.std) else f" ± {value.std:.{digits}f}"
    return f"{value.mean:.{digits}f}{around}"


def interval(value: Estimate | None, digits: int = 2) -> str:
    """A difference with its confidence interval."""
    if value is None:
        return "–"
    around = "" if math.isnan(value.low) else f" [{value.low:+.{digits}f}, {value.high:+.{digits}f}]"
    return f"{value.mean:+.{digits}f}{around}"


def remarks(entries: Sequence[Entry]) -> list[str]:
    """One sentence for each difference whose sign is not the paper's."""
    sentences = []
    for entry in entries:
        ours = entry.difference
        paper = entry.paper_difference
        if ours is None or paper is None or ours.mean * paper >= 0:
            continue
        certain = not math.isnan(ours.low) and ours.low * ours.high > 0
        sentences.append(
            f"{entry.row.name} against {entry.row.base}: the paper has {paper:+.2f}, we have {ours.mean:+.2f} "
            f"(the interval {'excludes' if certain else 'includes'} zero)."
        )
    return sentences


def overall(entries: Sequence[Entry], reference: str | None = None, metric: str = "error") -> list[list[str]]:
    """One line for each row compared with its base in several columns, then with the reference; empty if none is."""
    bases = {entry.row.name: entry.row.base for entry in entries}
    pairs = [(name, base) for name, base in bases.items() if base]
    pairs += [(name, reference) for name in bases if reference and name != reference]
    lines = [overall_line(name, base, entries, metric) for name, base in dict.fromkeys(pairs)]
    lines = [line for line in lines if line]
    return [OVERALL_HEAD, *lines] if lines else []


def overall_line(name: str, base: str, entries: Sequence[Entry], metric: str) -> list[str]:
    """The line of one row; every column has the same weight, whatever its number of seeds."""
    ours = (entry for entry in entries if entry.row.name == name)
    gaps = [differences(entry.by_seed, other.by_seed) for entry in ours for other in same_column(base, entry, entries)]
    columns = [runs for runs in gaps if runs]
    if len(columns) < MIN_COLUMNS:
        return []
    mean = sum(sum(runs) / len(runs) for runs in columns) / len(columns)
    runs = [gap for column in columns for gap in column]
    better = [run * better_sign(metric) > 0 for run in runs]
    signs = [sum(better), sum(run == 0 for run in runs), sum(run != 0 for run in runs) - sum(better)]
    return [name, base, str(len(columns)), f"{mean:+.{precision(metric)}f}", *map(str, signs)]


def same_column(name: str, entry: Entry, entries: Sequence[Entry]) -> list[Entry]:
    """The entry of another row in the same column, if there is one."""
    return [other for other in entries if other.column is entry.column and other.row.name == name]


def markdown(table: Table, entries: Sequence[Entry], facts: Sequence[str]) -> str:
    """The table as Markdown."""
    lines = [f"# {table.title}", "", *facts, ""]
    for name, (first, *rest), remarks in sections(table, entries):
        lines += [f"## {name}", "", markdown_row(first), markdown_row(["---"] * len(first))]
        lines += [*map(markdown_row, rest), "", *(f"- {remark}" for remark in remarks), *([""] if remarks else [])]
    return "\n".join(lines)


def markdown_row(cells: Sequence[str]) -> str:
    """One line of a Markdown table."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def page(table: Table, entries: Sequence[Entry], facts: Sequence[str]) -> str:
    """The table as an HTML page without external resources."""
    paragraphs = [fact.strip() for fact in facts if fact.strip()]
    return render("table.html", title=table.title, facts=paragraphs, sections=sections(table, entries))


def write_table(stem: Path, table: Table, entries: Sequence[Entry], facts: Sequence[str], command: str) -> None:
    """Write STEM.md, STEM.html and STEM.json; the JSON file has the command and the versions as well."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    texts = {".md": markdown(table, entries, facts), ".html": page(table, entries, facts)}
    for suffix, text in texts.items():
        write_text(stem.with_name(stem.name + suffix), text)
    values = {"command": command, "versions": versions(), "entries": [entry.to_json() for entry in entries]}
    write_json(stem.with_name(f"{stem.name}.json"), values)
