"""The parts of a benchmark on disk: NAME.json with every measured time, NAME.md with the tables."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from vcc_infuse.runs.folder import versions
from vcc_infuse.utils.io import read_json, write_json, write_text

from .turns import Comparison

REMARK = (
    "Median (quartiles) of CPU time, one thread, over rounds in which the variants take turns, each in its own process."
    " A ratio is to the first line, in the same round. Other work runs on such machines: only ratios mean something."
)


@dataclass
class Table:
    """Figures that are not times of variants."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | float]]


@dataclass
class Part:
    """One part of the benchmark."""

    name: str
    title: str
    comparisons: list[Comparison] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    remark: str = REMARK
    """What the times are."""
    minutes: float = 0.0
    """By the clock on the wall, until the part was measured."""


def write(part: Part, folder: Path, command: str) -> str:
    """Write both files and return the Markdown."""
    text = markdown(part, command)
    figures = {
        "command": command,
        "versions": versions(),
        "machine": machine(),
        "minutes": part.minutes,
        "comparisons": [asdict(comparison) | {"summary": summary(comparison)} for comparison in part.comparisons],
        "tables": [asdict(table) for table in part.tables],
    }
    write_json(folder / f"{part.name}.json", figures)
    write_text(folder / f"{part.name}.md", text)
    return text


def write_times(folder: Path, names: Iterable[str]) -> None:
    """A page that says how long each part took, once all of them were measured there."""
    found = {name: read_json(folder / f"{name}.json") for name in names}
    known = {name: facts for name, facts in found.items() if facts}
    if len(known) < len(found):
        return
    lines = ["# How long the parts take", "", *dict.fromkeys(f"    {facts['command']}" for facts in known.values()), ""]
    lines += [
        "By the clock on the wall, other work on the machine included. Where there are several commands, the parts"
    ]
    lines += [
        "were measured one after another, and the sum is what `python -m benchmarks all` would take. A part that was"
    ]
    lines += [
        "measured before it said how long it took counts with its turns, without what comes before the first one.",
        "",
    ]
    minutes = {name: facts.get("minutes") or minutes_of_turns(facts) for name, facts in known.items()}
    cells = [(name, "" if "minutes" in known[name] else "turns", f"{value:.1f}") for name, value in minutes.items()]
    cells.append(("all", "", f"{sum(minutes.values()):.1f}"))
    write_text(folder / "all.md", "\n".join([*lines, *rows(["part", "", "minutes"], cells)]) + "\n")


def minutes_of_turns(facts: dict[str, Any]) -> float:
    """All turns of a part, by the clock on the wall."""
    turns = (seconds for comparison in facts["comparisons"] for seconds in comparison["wall"].values())
    return sum(map(sum, turns)) / 60


def summary(comparison: Comparison) -> dict[str, dict[str, list[float]]]:
    """Quartiles of times and ratios of every variant."""
    return {
        name: {"milliseconds": comparison.times(name), "ratio": comparison.ratios(name)} for name in comparison.seconds
    }


def machine() -> dict[str, object]:
    """What the times depend on."""
    capability = torch.backends.cpu.get_cpu_capability()
    return {
        "cores": os.cpu_count(), "vector_instructions": capability, "processor": processor(), "threads_used": 1,
    }  # fmt: skip


def processor() -> str:
    """The kind of processor: maker, family and model where Linux tells them."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    known = [facts[name] for name in ("vendor_id", "cpu family", "model") if name in facts]
    return " ".join(known) or platform.processor() or platform.machine()


def markdown(part: Part, command: str) -> str:
    """The page."""
    about = f"torch {torch.__version__}, {machine()['vector_instructions']}, {os.cpu_count()} cores"
    lines = [f"# {part.title}", "", f"    {command}", "", f"{part.remark} {about}.", ""]
    for comparison in part.comparisons:
        lines += [f"## {comparison.title}", "", *compared(comparison), ""]
    for table in part.tables:
        lines += [f"## {table.title}", "", *rows(table.columns, table.rows), ""]
    return "\n".join([*lines, *part.notes]).rstrip() + "\n"


def compared(comparison: Comparison) -> list[str]:
    """A row per variant."""
    columns = ["", f"ms per {comparison.per}", f"time ÷ {comparison.base}", f"{comparison.base} ÷ time"]
    columns += ["peak MB"] if comparison.memory else []
    lines = []
    for name in comparison.seconds:
        ratio = comparison.ratios(name)
        row = [name, spread(comparison.times(name), 3), spread(ratio, 3), f"{1 / ratio[1]:.2f}"]
        memory = [f"{comparison.memory[name]:.0f}"] if comparison.memory else []
        lines.append([*row, *memory])
    return rows(columns, lines)


def spread(values: Sequence[float], digits: int) -> str:
    """Median and quartiles."""
    low, middle, high = (f"{value:.{digits}g}" if value < 1000 else f"{value:.0f}" for value in values)
    return f"{middle} ({low}–{high})"


def rows(columns: Sequence[str], cells: Iterable[Sequence[object]]) -> list[str]:
    """A Markdown table."""
    body = [f"| {' | '.join(map(str, row))} |" for row in cells]
    return [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}", *body]
