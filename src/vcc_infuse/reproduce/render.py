"""A table as lines of text cells, and as Markdown and HTML."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

from .collect import LABELS, Entry
from .statistics import Estimate, Grid, overall
from .table import Table


def sections(table: Table, entries: Sequence[Entry]) -> list[tuple[str, Grid, list[str]]]:
    """Name, text cells (a head line first) and remarks of each column, and of all together."""
    parts = []
    for column in table.columns:
        own = [entry for entry in entries if entry.column is column]
        grid = [head(table, own), *(line(table, entry, own) for entry in own)]
        parts.append((column.name, grid, remarks(own)))
    together = overall(entries)
    return [*parts, ("Over all columns", together, [])] if together else parts


def head(table: Table, entries: Sequence[Entry]) -> list[str]:
    """Column heads; the paper's figures only where it has any."""
    figures = [f"{LABELS[name]}{suffix}" for name in table.figures for suffix in paired_heads(name, entries)]
    gap = [*(["Δ paper"] if any(e.paper_gap is not None for e in entries) else []), "Δ error [95 % interval]"]
    return ["method", *figures, *gap, "compared with", "seeds", "hours", "by seed"]


def paired_heads(name: str, entries: Sequence[Entry]) -> list[str]:
    """Ours, preceded by the paper's if there is one."""
    return [", paper", ", ours"] if any(name in entry.paper for entry in entries) else [""]


def line(table: Table, entry: Entry, entries: Sequence[Entry]) -> list[str]:
    """One method's cells."""
    cells = [entry.row.name]
    for name in table.figures:
        digits = 2 if LABELS[name].endswith("%") else 3
        if len(paired_heads(name, entries)) == 2:
            cells.append(number(entry.paper.get(name), digits))
        cells.append(spread(entry.ours.get(name), digits))
    if any(e.paper_gap is not None for e in entries):
        cells.append(number(entry.paper_gap, 2, sign=True))
    cells += [interval(entry.gap), entry.row.base or "–", str(len(entry.by_seed)), f"{entry.hours:.3f}"]
    return [*cells, " ".join(f"{value:.1f}" for value in entry.by_seed.values())]


def number(value: float | None, digits: int, sign: bool = False) -> str:
    """A number, or a dash."""
    return "–" if value is None or math.isnan(value) else f"{value:{'+' if sign else ''}.{digits}f}"


def spread(value: Estimate | None, digits: int) -> str:
    """Mean ± std."""
    if value is None:
        return "–"
    around = "" if math.isnan(value.std) else f" ± {value.std:.{digits}f}"
    return f"{value.mean:.{digits}f}{around}"


def interval(value: Estimate | None) -> str:
    """A difference with its confidence interval."""
    if value is None:
        return "–"
    around = "" if math.isnan(value.low) else f" [{value.low:+.2f}, {value.high:+.2f}]"
    return f"{value.mean:+.2f}{around}"


def remarks(entries: Sequence[Entry]) -> list[str]:
    """A sentence where our difference has another sign than the paper's."""
    found = []
    for entry in entries:
        if entry.gap is None or entry.paper_gap is None or entry.gap.mean * entry.paper_gap >= 0:
            continue
        sure = not math.isnan(entry.gap.low) and entry.gap.low * entry.gap.high > 0
        weight = "the interval excludes zero" if sure else "the interval includes zero"
        found.append(
            f"{entry.row.name} against {entry.row.base}: the paper has {entry.paper_gap:+.2f}, "
            f"we have {entry.gap.mean:+.2f} ({weight})."
        )
    return found


def markdown(table: Table, entries: Sequence[Entry], facts: Sequence[str]) -> str:
    """The table as Markdown."""
    lines = [f"# {table.title}", "", *facts, ""]
    for name, (first, *rest), said in sections(table, entries):
        lines += [f"## {name}", "", row(first), row(["---"] * len(first)), *map(row, rest), ""]
        lines += [f"- {sentence}" for sentence in said] + ([""] if said else [])
    return "\n".join(lines)


def row(cells: Sequence[str]) -> str:
    """A line of a Markdown table."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


STYLE = """body{font:16px/1.5 system-ui,sans-serif;max-width:75rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse;display:block;overflow-x:auto}
td,th{padding:.25rem .75rem;text-align:right;white-space:nowrap}
td:first-child,th:first-child{text-align:left}tr+tr{border-top:1px solid #8884}pre{overflow-x:auto}
:root{color-scheme:light dark}"""


def page(table: Table, entries: Sequence[Entry], facts: Sequence[str]) -> str:
    """The table as a page that needs nothing else."""
    title = html.escape(table.title)
    body = [f"<h1>{title}</h1>", *(f"<p>{html.escape(fact.strip())}</p>" for fact in facts if fact.strip())]
    for name, (first, *rest), said in sections(table, entries):
        lines = [html_row("th", first), *(html_row("td", cells) for cells in rest)]
        body += [f"<h2>{html.escape(name)}</h2>", f"<table>{''.join(lines)}</table>"]
        body += [f"<ul>{''.join(f'<li>{html.escape(s)}</li>' for s in said)}</ul>"] if said else []
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>'
    return f'<!doctype html><html lang="en">{head}<style>{STYLE}</style>{"".join(body)}</html>\n'


def html_row(tag: str, cells: Sequence[str]) -> str:
    """A line of an HTML table."""
    return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"
