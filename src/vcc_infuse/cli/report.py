"""`vcc-infuse report RUN…`: one page about a run, or a comparison of several."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..report import write_report
from .parsing import Parser


def run(argv: Sequence[str]) -> None:
    """Write the page and say where it is."""
    parser = Parser(prog="vcc-infuse report", description="Draw a run, or compare several, on one page.")
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folder of a run, finished or not")
    parser.add_argument("-o", "--output", help="file to write; RUN/report.html, or report.html for several runs")
    options = parser.read(argv)
    beside = Path(options.runs[0]) / "report.html" if len(options.runs) == 1 else Path("report.html")
    print(f"report: {write_report(options.runs, options.output or beside)}")
