"""`vcc-infuse audit RUN`: which images of a run a person should look at."""

from __future__ import annotations

import csv
import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import TextIO

from ..audit import Audit, RunSource, add_to_report, audit_run
from ..pool_audit.unknown import ALPHA
from ..utils.io import table_cell
from .finished_run import add_output, check_output, run_parser, write_output
from .parser import Parser, add_device, integer, number

ABOUT = """Write one table of the images of a run to look at: unknown ones, copies, doubtful labels, and what to label
next, and show them in RUN/report.html; class shares of the pool and what more labels would bring are shown, too. The
run must have been trained with the preset frozen; its bank is used if it is in the cache, else the images are embedded
again."""


def run(argv: Sequence[str]) -> None:
    """Write file, issue, score, group and suggestion; show a summary."""
    parser = run_parser("audit", ABOUT)
    parser.add_argument("--unknown", type=number(0, 1), default=ALPHA, metavar="P",
                        help="an image counts as unknown up to this p-value (0.05)")  # fmt: skip
    parser.add_argument("-n", "--count", type=integer(0), default=20, help="images to label next (20)")
    add_source(parser)
    add_output(parser, "CSV file to write; - is the screen", "-")
    options = parser.read(argv)
    check_output(options.output, options.overwrite, options.run)
    result = audit_run(options.run, unknown=options.unknown, count=options.count, source=source_of(options))
    write_output(options.output, lambda handle: write_issues(result, handle))
    if os.access(options.run, os.W_OK) and not options.shards:  # which hold no pictures to show
        add_to_report(result, options.run)
    for line in result.summary():
        print(line, file=sys.stderr if options.output == "-" else sys.stdout)


def add_source(parser: Parser) -> None:
    """Add the options that say where the images of a run are."""
    parser.add_argument("--data", help="folder or zip of the run's images, if they are elsewhere now")
    parser.add_argument("--cache", help="folder of decoded images and banks")
    parser.add_argument("--shards", metavar="BANK", help="folder of `embed --shards`, in place of the pool")
    parser.add_argument("--sample", type=integer(), metavar="N", help="look at so many of its rows, drawn at random")
    parser.add_argument("--trust-code", action="store_true", help="import classes of other packages that RUN names")
    add_device(parser)


def source_of(options: Namespace) -> RunSource:
    """The values of these options."""
    return RunSource(
        data=options.data, cache=options.cache, device=options.device, engine=options.engine,
        trust_code=options.trust_code, progress=options.output != "-", shards=options.shards, sample=options.sample,
    )  # fmt: skip


def write_issues(result: Audit, handle: TextIO) -> None:
    """The table as CSV."""
    writer = csv.writer(handle)
    writer.writerow(["file", "issue", "score", "group", "suggestion"])
    for line in result.issues:
        writer.writerow(
            [table_cell(line.file), line.issue, f"{line.score:.6f}", line.group, table_cell(line.suggestion)]
        )
