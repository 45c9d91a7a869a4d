"""`vcc-infuse evaluate RUN`: measure a trained run on its own test set or another."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..data.dataset import Dataset, Examples
from ..data.sources import load
from ..errors import UserError
from ..files import write_json
from ..predictor import Predictor
from .options import read_config
from .simple import Parser
from .table import summary_table


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


def load_like(
    predictor: Predictor, run: str, data: str | None, root: str | None = None, cache: str | None = None
) -> Dataset:
    """A dataset in the shape the model was trained on; the run's own where none is named."""
    config: dict[str, Any] = read_config(str(Path(run) / "config.yaml")) if data is None else {}
    source = data or str(config.get("data", ""))
    if not source or source == "arrays":
        raise UserError("this run was trained on arrays; say what to measure on with --data")
    height, width, channels = predictor.shape if len(predictor.shape) == 3 else (0, 0, 0)
    mode = "grey" if channels == 1 else "rgb"
    size = height if height == width else None
    root = root or config.get("root")
    return load(source, root=root, size=size, mode=mode, cache=cache or config.get("cache"), progress=True)


def match_classes(dataset: Dataset, classes: tuple[str, ...]) -> Examples:
    """The test examples with the run's class numbers, found by name."""
    unknown = [name for name in dataset.classes if name not in classes]
    if unknown:
        raise UserError(f"--data has a class {unknown[0]!r} that the run does not know; it knows {', '.join(classes)}")
    if dataset.test is None:
        raise UserError("--data has no test set to measure on; give one that has")
    number = np.array([classes.index(name) for name in dataset.classes])
    return Examples(dataset.test.x, number[dataset.test.y], dataset.test.names)
