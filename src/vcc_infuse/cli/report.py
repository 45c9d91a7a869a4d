"""`vcc-infuse report RUN…`: one page about a run, or a comparison of several."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..report import write_report
from .finished_run import add_output, check_output
from .parser import Parser


def run(argv: Sequence[str]) -> None:
    """Write the page and print its path."""
    parser = Parser("vcc-infuse report", "Write a web page about one run, or a comparison of several.")
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folder of a run, finished or not")
    add_output(parser, "HTML file; RUN/report.html, or report.html for several runs")
    options = parser.read(argv)
    for run in options.runs:
        check_output(options.output, options.overwrite, run)
    default = Path(options.runs[0]) / "report.html" if len(options.runs) == 1 else Path("report.html")
    print(f"report: {write_report(options.runs, options.output or default)}")
