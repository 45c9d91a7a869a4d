"""`python -m paper TABLE`: a table of the paper as a grid of runs, written as Markdown, HTML and JSON."""

from __future__ import annotations

import shlex
import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from vcc_infuse.cli.main import run_guarded
from vcc_infuse.cli.parser import Parser, integer, one_of
from vcc_infuse.errors import UserError
from vcc_infuse.runs.folder import versions
from vcc_infuse.training.interrupt import Interrupted
from vcc_infuse.utils.memory import keep_freed_memory

from .collect import collect
from .cost import forecast
from .datasets import check_available
from .finished import keep, read, restore
from .grid import BACKENDS, run_grid
from .render import write_table
from .scales import SCALES, without_missing
from .table import Table
from .tables import TABLES, tables

PROG = "python -m paper"
INTERRUPTED = "interrupted; finished runs are kept, and the same command continues"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status; a user's mistake costs one line and status 2."""
    keep_freed_memory()
    return run_guarded(run, list(sys.argv[1:] if argv is None else argv), PROG)


def run(argv: Sequence[str]) -> int:
    """Run what is missing, then write the tables; the status is 1 if a cell failed."""
    options = read_options(argv)
    chosen = narrowed(tables(options.table, options.scale), "columns", options.columns)
    chosen = narrowed(chosen, "rows", options.rows)
    chosen = [without_missing(table, options.data_root) for table in chosen]
    cells = [cell for table in chosen for cell in table.cells(options.seeds, options.first_seed)]
    check_available((str(cell.options["data"]) for cell in cells), options.data_root)
    part, parts = options.shard
    cells = list(dict.fromkeys(cells))[part::parts]
    folder = Path(options.cells)
    if options.dry_run:
        known = read(options.runs) if options.runs else {}
        print("\n".join(forecast([cell for cell in cells if cell not in known], folder, options.jobs)))
        return 0
    if options.runs:
        restore(options.runs, folder)
    try:
        failures = run_grid(cells, folder, jobs=options.jobs, backend=options.backend, data_root=options.data_root)
    except (KeyboardInterrupt, Interrupted) as stop:
        raise Interrupted(INTERRUPTED, getattr(stop, "signal", 2)) from stop
    finally:
        if options.runs:
            keep(options.runs, cells, folder)
    for table in chosen:
        write(table, options, folder, f"{PROG} {shlex.join(argv)}")
    return 1 if failures else 0


def read_options(argv: Sequence[str]) -> Namespace:
    """Read and check the options."""
    parser = Parser(PROG, "Run the experiments of a table of the paper and write the table.")
    parser.add_argument("table", metavar="TABLE", help=f"{', '.join(TABLES)} or all")
    scales = "smoke takes seconds, scratch and frozen hours, paper needs GPUs (frozen)"
    parser.add_argument("--scale", **one_of(*SCALES), default="frozen", help=scales)
    for part, example in (("columns", "SVHN or '20 %% kept'"), ("rows", "INFUSE")):
        text = f"only the {part} whose name is or contains TEXT, such as {example}; may be repeated"
        parser.add_argument(f"--{part}", action="append", metavar="TEXT", help=text)
    data_root = "folder with cifar10.zip and the like, or torchvision's files"
    parser.add_argument("--data-root", "--data_root", help=data_root)
    parser.add_argument("--seeds", type=integer(), default=3, help="runs per cell, with the seeds 0, 1, 2, … (3)")
    parser.add_argument("--first-seed", type=integer(0), default=0, help="the first of the seeds (0)")
    parser.add_argument("--jobs", type=integer(), default=1, help="runs at the same time, which share the cores (1)")
    backends = "loky runs on this machine, ray and dask on a cluster (loky)"
    parser.add_argument("--backend", **one_of(*BACKENDS), default="loky", help=backends)
    shards = "i/n runs only the i-th of n parts of the table, for batch systems (1/1)"
    parser.add_argument("--shard", type=shard, default="1/1", help=shards)
    parser.add_argument("--cells", default="runs/cells", help="folder for the run folders (runs/cells)")
    runs = "file of finished runs: those in it are not made again, and those of this command are added"
    parser.add_argument("--runs", type=Path, metavar="FILE.jsonl", help=runs)
    parser.add_argument("--out", default="results", help="folder for the tables (results)")
    parser.add_argument("--dry-run", action="store_true", help="only list the runs and estimate their time")
    return parser.read(argv)


def narrowed(chosen: Sequence[Table], part: Literal["columns", "rows"], words: Sequence[str] | None) -> list[Table]:
    """The tables with only the columns or rows whose name is or contains one of the words."""
    if not words:
        return list(chosen)
    names = list(dict.fromkeys(item.name for table in chosen for item in getattr(table, part)))
    wanted: set[str] = set()
    for word in words:
        matches = {word} if word in names else {name for name in names if word in name}
        if not matches:
            raise UserError(f"--{part} {word} is not part of any name; there are: {'; '.join(names)}")
        wanted |= matches
    smaller = []
    for table in chosen:
        change: dict[str, Any] = {part: tuple(item for item in getattr(table, part) if item.name in wanted)}
        if change[part]:
            smaller.append(replace(table, **change))
    return smaller


def shard(text: str) -> tuple[int, int]:
    """The `type` of --shard: "2/4" is (1, 4)."""
    part, _, parts = text.partition("/")
    if not (part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
        raise ArgumentTypeError(f"must be i/n with i from 1 to n, such as 1/4, got {text!r}")
    return int(part) - 1, int(parts)


def write(table: Table, options: Namespace, cells: Path, command: str) -> None:
    """Write OUT/TABLE-SCALE.md, .html and .json."""
    first = options.first_seed
    planned = list(dict.fromkeys(table.cells(options.seeds, first)))
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
    write_table(stem, table, collect(table, options.seeds, cells, first), facts, command)
    print(f"{stem}.md: {finished} of {len(planned)} runs")


if __name__ == "__main__":
    sys.exit(main())
