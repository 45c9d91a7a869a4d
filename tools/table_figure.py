"""Figures of the tables in results/, as SVG.

`python tools/table_figure.py results/frozen/main-frozen.json` writes main-frozen.svg beside it: every method
against the linear probe. The site draws the row of each method on its page when it is built.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path
from statistics import mean
from typing import Any

RESULTS = Path(__file__).parents[1] / "results"
FAMILIES = (("frozen", "frozen-96"), ("scratch",))  # of each, the first folder that has the method
TABLES = ("main", "coreset", "imbalance", "calibrators", "beyond-error", "beyond-selection")
BLUE, GRAY = "#4a73c9", "#888"  # seen on white and on black
WIDTH, NAMES, FIGURES, LINE = 760, 250, 150, 24
FURTHEST = 15.0  # points; what lies beyond is drawn at the edge
Entry = dict[str, Any]


@dataclass(frozen=True)
class Mark:
    """One line of a figure: a dot with its interval, beside dots of others."""

    name: str
    value: float
    low: float
    high: float
    others: Sequence[float]
    text: str


@cache
def entries_of(path: Path) -> list[Entry]:
    """The cells of a table."""
    entries: list[Entry] = json.loads(path.read_text())["entries"]
    return entries


def rows_of(path: Path, option: str, name: str) -> list[Entry]:
    """The cells of a method that are compared with anything: an algorithm alone, a calibrator, a selector.

    Variants of a method stand below its own row in a table, so the first row is the method as it is by default.
    """
    later = {"algorithm": ("calibrator", "selector"), "calibrator": ("selector",)}.get(option, ())
    cells = [
        entry for entry in entries_of(path)
        if entry["options"].get(option) == name and not any(part in entry["options"] for part in later)
        and (entry["difference"] or entry["difference_to_reference"])
    ]  # fmt: skip
    return [cell for cell in cells if cell["row"] == cells[0]["row"]]


def tables_with(option: str, name: str) -> list[Path]:
    """The tables that have a row of this method, at most one of each scale."""
    found = []
    for folders in FAMILIES:
        paths = [path for folder in folders for table in TABLES for path in RESULTS.glob(f"{folder}/{table}-*.json")]
        found += [path for path in paths if rows_of(path, option, name)][:1]
    return found


def difference(entry: Entry, against: str | None) -> Entry | None:
    """The paired difference of a cell: to the row it is compared with, else to the reference of the table."""
    found: Entry | None = entry["difference"] if against else entry["difference_to_reference"]
    return found if found and (not against or entry["compared_with"] == against) else None


def marks_of(cells: Sequence[Entry], entries: Sequence[Entry], against: str | None) -> list[Mark]:
    """A mark per column of the row of a method."""
    marks = []
    for cell in cells:
        found = difference(cell, against)
        if found is None:
            continue
        beside = [entry for entry in entries if entry["column"] == cell["column"] and entry["row"] != cell["row"]]
        others = [shown["mean"] for entry in beside if (shown := difference(entry, against))]
        text = f"{cell['ours']['error']['mean']:.1f} % ({signed(found['mean'])})"
        # One seed has no interval.
        low, high = (found["mean"] if found[end] is None else found[end] for end in ("low", "high"))
        marks.append(Mark(cell["column"], found["mean"], low, high, others, text))
    return marks


def scale_of(cell: Entry) -> str:
    """What was trained, in words."""
    size = cell["setting"].get("model.input_size")
    return f"heads on frozen features at {size} px" if size else "a small network from random weights"


def signed(value: float) -> str:
    """A difference with its sign, in typographic form."""
    return f"{value:+.1f}".replace("-", "−")


def drawing(marks: Sequence[Mark], reference: str, title: str) -> str:
    """Lines with a dot each, left of the zero line if the error is lower than that of the reference."""
    ends = [abs(end) for mark in marks for end in (mark.low, mark.high, *mark.others) if abs(end) < FURTHEST]
    reach = 1.1 * max([1.0, *ends])
    middle = (NAMES + WIDTH - FIGURES) / 2
    scale = (WIDTH - FIGURES - NAMES) / 2 / reach
    height = LINE * len(marks) + 48
    parts = [zero_line(middle, height, reference, reach)]
    parts += [line_of(mark, 30 + LINE * row, reach, lambda x: middle + scale * x) for row, mark in enumerate(marks)]
    box = f'xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}"'
    style = 'font-family="sans-serif" font-size="13" style="max-width:100%;height:auto"'
    return f'<svg {box} {style} role="img" aria-label="{escape(title, quote=True)}">{"".join(parts)}</svg>'


def zero_line(middle: float, height: int, reference: str, reach: float) -> str:
    """The reference, and what the axis means."""
    line = f'<line x1="{middle}" x2="{middle}" y1="18" y2="{height - 22}" stroke="{GRAY}" stroke-dasharray="4 3"/>'
    name = f'<text x="{middle}" y="12" text-anchor="middle" fill="{GRAY}">{escape(reference)}</text>'
    axis = f"← lower error   points of error, axis ±{reach:.0f}   higher error →"
    return f'{line}{name}<text x="{middle}" y="{height - 5}" text-anchor="middle" fill="{GRAY}">{axis}</text>'


def line_of(mark: Mark, top: int, reach: float, at: Callable[[float], float]) -> str:
    """One line: its name, the dots of others in gray, the dot and its interval, the figures."""
    y = top + 4
    gray = "".join(
        f'<circle cx="{at(x):.1f}" cy="{y}" r="2.5" fill="{GRAY}" opacity=".5"/>' for x in inside(mark.others, reach)
    )
    low, high, dot = (at(max(-reach, min(reach, x))) for x in (mark.low, mark.high, mark.value))
    interval = f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{y}" y2="{y}" stroke="{BLUE}" stroke-width="2"/>'
    shape = f'<circle cx="{dot:.1f}" cy="{y}" r="5" fill="{BLUE}"/>'
    name = f'<text x="{NAMES - 12}" y="{y + 4}" text-anchor="end" fill="{GRAY}">{escape(mark.name)}</text>'
    figures = f'<text x="{WIDTH - FIGURES + 12}" y="{y + 4}" fill="{GRAY}">{escape(mark.text)}</text>'
    return f"{name}{gray}{interval}{shape}{figures}"


def inside(values: Iterable[float], reach: float) -> list[float]:
    """The values that the axis has room for."""
    return [value for value in values if abs(value) <= reach]


def section(option: str, name: str) -> str:
    """What the page of a method shows of the tables."""
    parts = [figure(path, rows_of(path, option, name)) for path in tables_with(option, name)]
    if not parts and option == "model":
        return ""
    return "\n".join(["## In the tables\n", *(parts or ["No table compares it with another row.\n"])])


def figure(path: Path, cells: Sequence[Entry]) -> str:
    """The row of a method in one table."""
    first = cells[0]
    against = first["compared_with"] if first["difference"] else None
    reference = against or ("Supervised" if path.parent.name == "scratch" else "LinearProbe")
    title = f"{first['row']} against {reference}"
    table = path.relative_to(RESULTS).with_suffix(".md")
    seeds = sorted({cell["ours"]["error"]["seeds"] for cell in cells})
    about = (
        f"**{title}**: {scale_of(first)}, {'–'.join(map(str, seeds))} seeds ([table](../results/{table})). "
        "Test error in percent; in parentheses and as a dot the paired difference, with its 95 % interval. "
        "Gray dots are the other rows of the table."
    )
    marks = marks_of(cells, entries_of(path), against)
    return f"{about}\n\n<figure>{drawing(marks, reference, title)}</figure>\n"


def overview(path: Path) -> str:
    """Every method of a table against the linear probe: its mean over the settings, and a gray dot per setting.

    Only settings in which every drawn method was run count, so that the means can be compared.
    """
    cells: dict[str, dict[str, float]] = {}
    for entry in entries_of(path):
        if found := entry["difference_to_reference"]:
            cells.setdefault(entry["row"], {})[entry["column"]] = found["mean"]
    most = max(map(len, cells.values()))
    drawn = {row: found for row, found in cells.items() if len(found) > most / 2}
    shared = [column for column in next(iter(drawn.values())) if all(column in found for found in drawn.values())]
    means = {row: mean(found[column] for column in shared) for row, found in drawn.items()}
    marks = [
        Mark(row, means[row], means[row], means[row], [drawn[row][column] for column in shared], signed(means[row]))
        for row in sorted(drawn, key=means.__getitem__)
    ]
    return drawing(marks, "LinearProbe", f"Methods against LinearProbe, mean of {'; '.join(shared)}")


def main(paths: Sequence[str]) -> None:
    """Write the overview of each table beside it."""
    for path in map(Path, paths):
        path.with_suffix(".svg").write_text(overview(path.absolute()) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
