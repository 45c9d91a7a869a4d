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
    """Until it was measured, by the clock on the wall."""
    cpu_minutes: float = 0.0


def write(part: Part, folder: Path, command: str) -> str:
    """Write both files and return the Markdown."""
    text = markdown(part, command)
    figures = {
        "command": command,
        "versions": versions(),
        "machine": machine(),
        "minutes": part.minutes,
        "cpu_minutes": part.cpu_minutes,
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
    lines += [TIMES, ""]
    minutes = {
        name: [facts.get(kind) or minutes_of_turns(facts, turns) for kind, turns in CLOCKS.items()]
        for name, facts in known.items()
    }
    minutes["all"] = [sum(column) for column in zip(*minutes.values(), strict=True)]
    cells = [(name, *(f"{value:.1f}" for value in both)) for name, both in minutes.items()]
    table = rows(["part", "CPU minutes", "minutes on the wall, beside other work"], cells)
    write_text(folder / "all.md", "\n".join([*lines, *table]) + "\n")


TIMES = (
    "Where there are several commands, the parts were measured one after another, and the sum is what `python -m "
    "benchmarks all` would take; on a machine with nothing else to do, CPU time and wall clock differ little. A part "
    "that was measured before it said how long it took counts with its turns."
)
CLOCKS = {"cpu_minutes": "seconds", "minutes": "wall"}
"""How long a part took, and the same of its turns."""


def minutes_of_turns(facts: dict[str, Any], clock: str) -> float:
    """All turns of a part."""
    turns = (seconds for comparison in facts["comparisons"] for seconds in comparison[clock].values())
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
    others = "ours" in comparison.seconds and comparison.base != "ours"
    columns += ["time ÷ ours"] if others else []
    columns += ["peak MB"] if comparison.memory else []
    lines = []
    for name in comparison.seconds:
        ratio = comparison.ratios(name)
        row = [name, spread(comparison.times(name), 3), spread(ratio, 3), f"{1 / ratio[1]:.2f}"]
        memory = [f"{comparison.memory[name]:.0f}"] if comparison.memory else []
        apart = [spread(comparison.ratios(name, "ours"), 3)] if others else []
        lines.append([*row, *apart, *memory])
    return rows(columns, lines)


def spread(values: Sequence[float], digits: int) -> str:
    """Median and quartiles."""
    low, middle, high = (f"{value:.{digits}g}" if value < 1000 else f"{value:.0f}" for value in values)
    return f"{middle} ({low}–{high})"


def rows(columns: Sequence[str], cells: Iterable[Sequence[object]]) -> list[str]:
    """A Markdown table."""
    body = [f"| {' | '.join(map(str, row))} |" for row in cells]
    return [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}", *body]
