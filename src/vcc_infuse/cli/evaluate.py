"""`vcc-infuse evaluate RUN`: measure a trained run on its own test set or another."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..inference.predictor import Predictor
from ..utils.io import write_json
from .findings import findings
from .finished_run import add_common, add_measured, check_output, labeled_images, run_parser
from .train import summary_table


def run(argv: Sequence[str]) -> None:
    """Print every metric; `-o` also writes them as JSON."""
    parser = run_parser("evaluate", "Measure a trained run on a test set.")
    add_measured(parser, help="a named source, folder or zip; the data of the run if not given")
    add_common(parser, "also write the metrics to this JSON file")
    options = parser.read(argv)
    check_output(options.output, options.overwrite, options.run)
    predictor = Predictor.load(options.run, options.device, options.trust_code, engine=options.engine)
    dataset, examples = labeled_images(predictor, options)
    metrics = predictor.evaluate(examples, options.bins)
    metrics |= {"evaluated_on": dataset.evaluated_on, "evaluated_images": len(examples)}
    print(summary_table(metrics))
    print(*findings(metrics), sep="\n")
    if options.output:
        write_json(Path(options.output), metrics)
