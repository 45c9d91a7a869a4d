"""`vcc-infuse evaluate RUN`: measure a trained run on its own test set or another."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..inference.predictor import Predictor
from ..utils.io import write_json
from .finished_run import add_output, check_config, check_output, config_of, load_like, measured_on
from .parser import Parser, add_device, add_limits, add_trust, integer, limits_of
from .tables import summary_table


def run(argv: Sequence[str]) -> None:
    """Print every metric; `-o` also writes them as JSON."""
    parser = Parser("vcc-infuse evaluate", "Measure a trained run on a test set.")
    parser.add_argument("run", metavar="RUN", help="folder of a finished run")
    parser.add_argument("--data", help="a named source, folder or zip; the data of the run if not given")
    parser.add_argument("--label_file", help="table with the labels of the images in --data")
    parser.add_argument("--root", help="folder with the files of a named source")
    parser.add_argument("--cache", help="folder for decoded images")
    parser.add_argument("--bins", type=integer(), default=15, help="bins of the calibration metrics (15)")
    add_device(parser)
    add_limits(parser)
    add_trust(parser)
    add_output(parser, "also write the metrics to this JSON file")
    parser.add_argument("--force", action="store_true", help="measure although data or config.yaml have changed")
    options = parser.read(argv)
    check_output(options.output, options.overwrite, options.run)
    predictor = Predictor.load(options.run, options.device, options.trust_code)
    check_config(predictor, options.run, options.force)
    own = bool(config_of(options.run, options.data))
    dataset = load_like(
        predictor, options.run, options.data, options.root, options.cache, options.label_file, limits_of(options)
    )
    examples = measured_on(dataset, predictor, options.run, own, options.force)
    metrics = predictor.evaluate(examples, options.bins)
    metrics |= {"evaluated_on": dataset.evaluated_on, "evaluated_images": len(examples)}
    print(summary_table(metrics))
    if options.output:
        write_json(Path(options.output), metrics)
