"""`vcc-infuse evaluate RUN`: measure a trained run on its own test set or another."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..predictor import Predictor
from ..utils.io import write_json
from .console import summary_table
from .parsing import Parser
from .shared import load_like, match_classes


def run(argv: Sequence[str]) -> None:
    """Print every figure; `-o` also writes them as JSON."""
    parser = Parser(prog="vcc-infuse evaluate", description="Measure a trained run on a test set.")
    parser.add_argument("run", help="folder of a finished run")
    parser.add_argument("--data", help="a named source, folder or zip; the run's own data if not given")
    parser.add_argument("--root", help="where the files of a named source lie")
    parser.add_argument("--cache", help="where decoded images are kept")
    parser.add_argument("--bins", type=int, default=15, help="bins of the calibration figures")
    parser.add_argument("-o", "--output", help="also write the figures to this JSON file")
    options = parser.read(argv)
    predictor = Predictor.load(options.run)
    dataset = load_like(predictor, options.run, options.data, options.root, options.cache)
    figures = predictor.evaluate(match_classes(dataset, predictor.classes), options.bins)
    print(summary_table(figures))
    if options.output:
        write_json(Path(options.output), figures)
