"""What several commands do with a finished run and with their output."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import yaml

from ..data.dataset import Dataset, Examples
from ..data.loading import load
from ..data.ssl_data import keep_validation
from ..errors import UserError
from ..predictor import Predictor
from ..utils.io import in_words, write_atomic

LARGEST = 10**6  # characters of a configuration file


def read_config(path: str | Path, option: str = "") -> dict[str, Any]:
    """A YAML configuration as a dict; `option` precedes the path in an error."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(LARGEST + 1)
        config = yaml.safe_load(text) if len(text) <= LARGEST else None
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as fault:
        raise UserError(f"{option}{path} cannot be read: {in_words(fault)}") from fault
    if not isinstance(config, dict) or not within(config, LARGEST // 100):
        raise UserError(f"{option}{path} must hold options, one `name: value` per line, and not too many")
    return config


def within(tree: Any, most: int) -> bool:
    """Whether nested lists and dicts hold at most so many values. Aliases in YAML can make a few lines endless."""
    left = [tree]
    for _ in range(most):
        if not left:
            return True
        here = left.pop()
        left += here.values() if isinstance(here, dict) else here if isinstance(here, list) else ()
    return not left


def image_predictor(run: str, device: str) -> Predictor:
    """The classifier of a run that was trained on images."""
    predictor = Predictor.load(run, device)
    if len(predictor.shape) != 3:
        raise UserError(f"{run} was trained on feature vectors, not on images; use Predictor in Python")
    return predictor


def load_like(
    predictor: Predictor, run: str, data: str | None, root: str | None = None, cache: str | None = None,
    label_file: str | None = None,
) -> Dataset:  # fmt: skip
    """A dataset with examples of the shape the model was trained on; the data of the run itself if none is named.

    Other data without a test set are measured on all their labels.
    """
    config = _config_of(run, data)
    source = data or str(config.get("data", ""))
    if not source or source == "arrays":
        raise UserError(f"{run} was trained on arrays; choose what to measure on with --data")
    height, width, channels = predictor.shape if len(predictor.shape) == 3 else (0, 0, 0)
    mode = {1: "gray", 3: "rgb"}.get(channels, "auto")
    size = height if height == width else None
    root = root or config.get("root")
    table, cache = label_file or config.get("label_file"), cache or config.get("cache")
    dataset = load(source, root=root, size=size, mode=mode, cache=cache, progress=True, label_file=table)
    if dataset.test is not None:
        return dataset
    if not config:
        return labels_as_test(dataset)
    share = config.get("validation", "none")
    return dataset if share == "none" else keep_validation(dataset, share)


def labels_as_test(dataset: Dataset) -> Dataset:
    """The dataset with its labeled training examples as test set."""
    known = np.flatnonzero(dataset.train.y >= 0)
    return replace(dataset, test=Examples(dataset.train.x[known], dataset.train.y[known]))


def _config_of(run: str, data: str | None) -> dict[str, Any]:
    """The options of the run, if `data` is not given or the run's own."""
    path = Path(run) / "config.yaml"
    config = read_config(path) if data is None or path.is_file() else {}
    return config if data in (None, config.get("data")) else {}


def match_classes(dataset: Dataset, classes: tuple[str, ...]) -> Examples:
    """The test examples with the class numbers of the run; classes are matched by name."""
    unknown = [name for name in dataset.classes if name not in classes]
    if unknown:
        raise UserError(f"--data has a class {unknown[0]!r} that the run does not have; it has {', '.join(classes)}")
    if dataset.test is None:
        raise UserError("--data has no test set; give data that has one, such as a folder test/<class>")
    number = np.array([classes.index(name) for name in dataset.classes])
    return Examples(dataset.test.x, number[dataset.test.y], dataset.test.names)


def write_output(output: str, write: Callable[[TextIO], None]) -> None:
    """Write to the screen (`-`), or to a file that appears only when it is complete."""
    if output == "-":
        write(sys.stdout)
        return

    def fill(path: Path) -> None:
        with open(path, "w", encoding="utf-8", newline="", errors="surrogateescape") as handle:
            write(handle)

    write_atomic(Path(output), fill)
