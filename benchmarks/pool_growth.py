"""How time and memory of every part that touches the pool grow with its rows; each measurement in its own process.

    OMP_NUM_THREADS=1 python -m benchmarks pool_growth --rows 10000 100000 1000000

writes growth.json, growth.md and growth.png. What is in growth.json is not measured again unless it is named.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import torch

from vcc_infuse.cli.parser import Parser, integer
from vcc_infuse.errors import UserError
from vcc_infuse.utils.io import write_json, write_text

from .page import Part, Table, machine, markdown
from .pool_growth_jobs import JOBS, WIDTH

PROG = "python -m benchmarks pool_growth"
ROWS = (10**4, 10**5, 10**6)
LINEAR = 1.15  # exponent of the time up to which growth counts as linear: caches and sorting grow a little
REMARK = (
    f"Made-up features of width {WIDTH} around 200 centers, float16, 10 classes. CPU time of one thread; memory is the "
    "peak above what the process held before, which is mostly the features, divided by the rows: at 10,000 rows the "
    "fixed part rules. The exponent is that of the "
    f"time between the last two sizes; up to {LINEAR} counts as linear."
)


class Figure(NamedTuple):
    """One measurement: a part, its rows, CPU seconds, bytes of peak memory, and what it found out besides."""

    part: str
    rows: int
    seconds: float
    bytes: float
    note: str


def main(argv: Sequence[str]) -> None:
    """Measure what is missing, keep each measurement, and write the page at the end."""
    parser = Parser(PROG, f"Growth with the rows of a pool: {', '.join(JOBS)}.")
    parser.add_argument("--rows", type=integer(1000), nargs="+", default=list(ROWS), help="rows of the pool")
    parser.add_argument("--parts", nargs="+", default=[], help="measure only these, also if they are measured already")
    parser.add_argument("--out", default="results/growth", help="folder of the files (results/growth)")
    options = parser.read(argv)
    unknown = [name for name in options.parts if name not in JOBS]
    if unknown:
        raise UserError(f"--parts {unknown[0]} is not measured here; choose among {', '.join(JOBS)}")
    folder = Path(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    figures = read(folder / "growth.json")
    for rows in options.rows:
        for name in options.parts or JOBS:
            if options.parts or not any((figure.part, figure.rows) == (name, rows) for figure in figures):
                figures = [figure for figure in figures if (figure.part, figure.rows) != (name, rows)]
                figures.append(measure(name, rows))
                print(figures[-1], flush=True)
                save(folder, figures)
    publish(folder, figures)


def read(path: Path) -> list[Figure]:
    """What was measured so far."""
    return [Figure(**row) for row in json.loads(path.read_text())["figures"]] if path.is_file() else []


def measure(name: str, rows: int) -> Figure:
    """One part in a process of its own, whose peak memory is its own."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=work, args=(theirs, name, rows))
    child.start()
    theirs.close()
    try:
        seconds, memory, note = ours.recv()
    except EOFError:
        raise UserError(f"{name} at {rows:,} rows ended without a result; see above, or give fewer rows") from None
    finally:
        child.join()
    return Figure(name, rows, seconds, memory, note)


def work(pipe: Connection, name: str, rows: int) -> None:
    """The child: make what is needed, then measure."""
    torch.set_num_threads(1)
    job = JOBS[name](rows)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = status("VmRSS")
    began = time.process_time()
    note = job()
    seconds = time.process_time() - began
    memory = status("VmHWM") - before
    pipe.send((seconds, memory, note() if callable(note) else note or ""))


def status(name: str) -> int:
    """Bytes that the system says this process takes."""
    line = next(text for text in Path("/proc/self/status").read_text().splitlines() if text.startswith(name))
    return 1024 * int(line.split()[1])


def save(folder: Path, figures: Sequence[Figure]) -> None:
    """What was measured."""
    write_json(folder / "growth.json", {"machine": machine(), "figures": [figure._asdict() for figure in figures]})


def publish(folder: Path, figures: Sequence[Figure]) -> None:
    """The page and the plot."""
    rows = [row(name, [figure for figure in figures if figure.part == name]) for name in JOBS]
    sizes = sorted({figure.rows for figure in figures})
    columns = [
        "part",
        *(f"µs per row at {size:,}" for size in sizes),
        *(f"bytes per row at {size:,}" for size in sizes),
    ]
    cells = [line(name, figures, sizes) for name in JOBS if any(figure.part == name for figure in figures)]
    part = Part("growth", "Growth with the pool", tables=[Table("Parts", [*columns, "exponent", "linear", ""], cells)])
    part.remark = REMARK
    sizes_text = " ".join(map(str, sizes))
    write_text(folder / "growth.md", markdown(part, f"OMP_NUM_THREADS=1 {PROG} --rows {sizes_text}"))
    plot(folder / "growth.png", [points for points in rows if points])


def row(name: str, figures: Sequence[Figure]) -> list[Figure]:
    """The measurements of a part, by rows."""
    return sorted((figure for figure in figures if figure.part == name), key=lambda figure: figure.rows)


def line(name: str, figures: Sequence[Figure], sizes: Sequence[int]) -> list[str | float]:
    """A line of the table."""
    own = {figure.rows: figure for figure in row(name, figures)}
    times = [f"{1e6 * own[size].seconds / size:.3g}" if size in own else "–" for size in sizes]
    memory = [f"{own[size].bytes / size:.0f}" if size in own else "–" for size in sizes]
    rate = exponent(list(own.values()))
    verdict = "–" if rate is None else "yes" if rate <= LINEAR else "**no**"
    note = list(own.values())[-1].note
    return [name, *times, *memory, "–" if rate is None else f"{rate:.2f}", verdict, note]


def exponent(figures: Sequence[Figure]) -> float | None:
    """By which power of the rows the time grows between the last two sizes."""
    if len(figures) < 2:
        return None
    small, large = figures[-2:]
    return math.log(large.seconds / max(small.seconds, 1e-3)) / math.log(large.rows / small.rows)


def plot(path: Path, series: Sequence[Sequence[Figure]]) -> None:
    """Seconds against rows, with a line of slope 1."""
    from matplotlib.figure import Figure as Picture

    picture = Picture(figsize=(9, 6), layout="constrained")
    axes = picture.subplots()
    for number, figures in enumerate(series):
        rows = [figure.rows for figure in figures]
        seconds = [figure.seconds for figure in figures]
        axes.loglog(rows, seconds, marker="osv^"[number // 10 % 4], label=figures[0].part)
    axes.loglog(ROWS, [1e-5 * size for size in ROWS], "--", color="gray", label="10 µs per row")
    axes.set(xlabel="rows of the pool", ylabel="CPU seconds, one thread", title="Growth with the pool")
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    temporary = path.with_suffix(".part.png")
    picture.savefig(temporary, dpi=110)
    temporary.replace(path)
