"""`vcc-infuse reproduce`: a table of the paper as a grid of runs, written as Markdown, HTML and JSON."""

from __future__ import annotations

import shlex
from argparse import ArgumentTypeError, Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from vcc_infuse.cli.parsing import Parser, integer, one_of
from vcc_infuse.errors import UserError
from vcc_infuse.runs.folder import versions
from vcc_infuse.training.signals import Interrupted

from . import Cell, Table, run_grid
from .backends import BACKENDS
from .collect import collect
from .datasets import check_available, without_missing
from .estimate import plan
from .render import write_table
from .scales import SCALES
from .tables import TABLES, tables

AGAIN = "interrupted; finished runs are kept, and the same command continues"


def run(argv: Sequence[str]) -> int:
    """Run what is missing, then write the tables; the status is 1 if a cell failed."""
    options = read(argv)
    chosen = within(tables(options.table, options.scale), "columns", options.columns)
    chosen = within(chosen, "rows", options.rows)
    chosen = [without_missing(table, options.data_root) for table in chosen]
    cells = [cell for table in chosen for cell in table.cells(options.seeds, options.first_seed)]
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
    parser = Parser("vcc-infuse reproduce", "Run the experiments of a table of the paper and write the table.")
    parser.add_argument("table", metavar="TABLE", help=f"{', '.join(TABLES)} or all")
    parser.add_argument("--scale", **one_of(*SCALES), default="frozen",
                        help="smoke takes seconds, frozen hours, paper needs GPUs (frozen)")  # fmt: skip
    for part, example in (("columns", "SVHN or '20 %% kept'"), ("rows", "INFUSE")):
        text = f"only the {part} whose name is or contains TEXT, such as {example}; may be repeated"
        parser.add_argument(f"--{part}", action="append", metavar="TEXT", help=text)
    parser.add_argument(
        "--data-root", "--data_root", help="folder with cifar10.zip and the like, or torchvision's files"
    )
    parser.add_argument("--seeds", type=integer(), default=3, help="runs per cell, with the seeds 0, 1, 2, … (3)")
    parser.add_argument("--first-seed", type=integer(0), default=0, help="the first of the seeds (0)")
    parser.add_argument("--jobs", type=integer(), default=1, help="runs at the same time, which share the cores (1)")
    parser.add_argument("--backend", **one_of(*BACKENDS), default="loky",
                        help="loky runs on this machine, ray and dask on a cluster (loky)")  # fmt: skip
    parser.add_argument("--shard", type=shard, default="1/1",
                        help="i/n runs only the i-th of n parts of the table, for batch systems (1/1)")  # fmt: skip
    parser.add_argument("--cells", default="runs/cells", help="folder for the run folders (runs/cells)")
    parser.add_argument("--out", default="results", help="folder for the tables (results)")
    parser.add_argument("--dry-run", action="store_true", help="only list the runs and estimate their time")
    return parser.read(argv)


def within(chosen: Sequence[Table], part: Literal["columns", "rows"], words: Sequence[str] | None) -> list[Table]:
    """The tables with only the columns or rows whose name is or contains one of the words."""
    if not words:
        return list(chosen)
    names = dict.fromkeys(each.name for table in chosen for each in getattr(table, part))
    fitting = {word: {word} if word in names else {name for name in names if word in name} for word in words}
    for word in (word for word in words if not fitting[word]):
        raise UserError(f"--{part} {word} is not part of any name; there are: {'; '.join(names)}")
    asked = set().union(*fitting.values())
    changes: list[dict[str, Any]] = [
        {part: tuple(each for each in getattr(table, part) if each.name in asked)} for table in chosen
    ]
    return [replace(table, **change) for table, change in zip(chosen, changes, strict=True) if change[part]]


def shard(text: str) -> tuple[int, int]:
    """The `type` of --shard: "2/4" is (1, 4)."""
    part, _, whole = text.partition("/")
    if not (part.isdecimal() and whole.isdecimal() and 1 <= int(part) <= int(whole)):
        raise ArgumentTypeError(f"must be i/n with i from 1 to n, such as 1/4, got {text!r}")
    return int(part) - 1, int(whole)


def write(table: Table, options: Namespace, cells: Path, command: str) -> None:
    """Write OUT/TABLE-SCALE.md, .html and .json."""
    first = options.first_seed
    entries = collect(table, options.seeds, cells, first)
    planned: list[Cell] = list(dict.fromkeys(table.cells(options.seeds, first)))
    finished = sum(cell.summary(cells) is not None for cell in planned)
    facts = [
        f"Scale: {options.scale}. Mean ± standard deviation over seeds {first} to {first + options.seeds - 1}; "
        f"differences are paired, on the same seeds and splits. {finished} of {len(planned)} runs are finished.",
        "",
        f"    {command}",
        "",
        "Versions: " + ", ".join(f"{name} {number}" for name, number in versions().items()) + ".",
    ]
    facts += ["", table.remark] if table.remark else []
    stem = Path(options.out) / f"{table.name}-{options.scale}"
    write_table(stem, table, entries, facts, command)
    print(f"{stem}.md: {finished} of {len(planned)} runs")
