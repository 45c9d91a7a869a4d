"""`vcc-infuse reproduce`: a table of the paper as a grid of runs, written as Markdown, HTML and JSON."""

from __future__ import annotations

import shlex
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from ..errors import UserError
from ..reproduce import Cell, Table, run_grid
from ..reproduce.backends import BACKENDS
from ..reproduce.collect import collect
from ..reproduce.datasets import check_available
from ..reproduce.estimate import plan
from ..reproduce.render import write_table
from ..reproduce.scales import SCALES
from ..reproduce.tables import TABLES, tables
from ..runs.folder import versions
from ..training.signals import Interrupted
from .parsing import Parser

AGAIN = "interrupted; finished cells are kept: the same command goes on"


def run(argv: Sequence[str]) -> int:
    """Run what is missing, then write the tables; the status is 1 if a cell failed."""
    options = read(argv)
    chosen = within(tables(options.table, options.scale), "columns", options.columns)
    chosen = within(chosen, "rows", options.rows)
    cells = [cell for table in chosen for cell in table.cells(options.seeds)]
    check_available(cells, options.data_root)
    mine = list(dict.fromkeys(cells))[options.shard[0] :: options.shard[1]]
    folder = Path(options.cells)
    if options.dry_run:
        print("\n".join(plan(mine, folder, options.jobs)))
        return 0
    try:
        failures = run_grid(mine, folder, options.jobs, options.backend, options.data_root)
    except (KeyboardInterrupt, Interrupted) as stop:
        raise Interrupted(AGAIN, getattr(stop, "signal", 2)) from stop
    for table in chosen:
        write(table, options, folder, shlex.join(["vcc-infuse", "reproduce", *argv]))
    return 1 if failures else 0


def read(argv: Sequence[str]) -> Namespace:
    """The options, checked."""
    parser = Parser(prog="vcc-infuse reproduce", description="Run a table of the paper and write it.")
    parser.add_argument("table", help=f"{', '.join(TABLES)} or all")
    parser.add_argument("--scale", choices=SCALES, default="cpu", help="smoke (seconds), cpu (hours), paper (GPUs)")
    for part, example in (("columns", "SVHN or '20 %% kept'"), ("rows", "INFUSE")):
        told = f"only the {part} whose name is or contains this, e.g. {example}; may be given several times"
        parser.add_argument(f"--{part}", action="append", metavar="TEXT", help=told)
    parser.add_argument("--data-root", help="folder with cifar10.zip and the like, or torchvision's files")
    parser.add_argument("--seeds", type=int, default=3, help="runs of every cell; seeds are 0, 1, 2, …")
    parser.add_argument("--jobs", type=int, default=1, help="cells at a time; cores are shared among them")
    parser.add_argument("--backend", choices=BACKENDS, default="loky", help="loky is this machine; ray, dask: clusters")
    parser.add_argument("--shard", default="1/1", help="i/n: only the i-th of n parts of the cells, for batch systems")
    parser.add_argument("--cells", default="runs/cells", help="where the run folders of the cells lie")
    parser.add_argument("--out", default="results", help="where the tables are written")
    parser.add_argument("--dry-run", action="store_true", help="only list the cells and estimate the time")
    options = parser.read(argv)
    for name in ("seeds", "jobs"):
        if getattr(options, name) < 1:
            raise UserError(f"--{name} must be at least 1, got {getattr(options, name)}")
    options.shard = parse_shard(options.shard)
    return options


def within(chosen: Sequence[Table], part: Literal["columns", "rows"], words: Sequence[str] | None) -> list[Table]:
    """The tables with only the columns or rows that the words name, whole or by a part of the name."""
    if not words:
        return list(chosen)
    names = dict.fromkeys(each.name for table in chosen for each in getattr(table, part))
    fitting = {word: {word} if word in names else {name for name in names if word in name} for word in words}
    for word in (word for word in words if not fitting[word]):
        raise UserError(f"--{part} {word} is in no {part[:-1]}'s name; there are: {'; '.join(names)}")
    asked = set().union(*fitting.values())
    changes: list[dict[str, Any]] = [
        {part: tuple(each for each in getattr(table, part) if each.name in asked)} for table in chosen
    ]
    return [replace(table, **change) for table, change in zip(chosen, changes, strict=True) if change[part]]


def parse_shard(text: str) -> tuple[int, int]:
    """ "2/4" is (1, 4)."""
    part, _, whole = text.partition("/")
    if not (part.isdecimal() and whole.isdecimal() and 1 <= int(part) <= int(whole)):
        raise UserError(f"--shard {text} is not possible; give i/n with i from 1 to n, e.g. 1/4")
    return int(part) - 1, int(whole)


def write(table: Table, options: Namespace, cells: Path, command: str) -> None:
    """OUT/TABLE-SCALE.md, .html and .json."""
    entries = collect(table, options.seeds, cells)
    planned: list[Cell] = list(dict.fromkeys(table.cells(options.seeds)))
    finished = sum(cell.summary(cells) is not None for cell in planned)
    facts = [
        f"Scale: {options.scale}. Mean ± standard deviation over seeds 0 to {options.seeds - 1}; differences are "
        f"paired, on the same seeds and splits. {finished} of {len(planned)} runs are finished.",
        "",
        f"    {command}",
        "",
        "Versions: " + ", ".join(f"{name} {number}" for name, number in versions().items()) + ".",
    ]
    facts += ["", table.remark] if table.remark else []
    stem = Path(options.out) / f"{table.name}-{options.scale}"
    write_table(stem, table, entries, facts, command)
    print(f"{stem}.md: {finished} of {len(planned)} runs")
