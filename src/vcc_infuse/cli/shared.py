"""TODO."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..data.dataset import Dataset, Examples
from ..data.loading import load
from ..errors import UserError
from ..predictor import Predictor
from .parsing import read_config


def load_like(
    predictor: Predictor, run: str, data: str | None, root: str | None = None, cache: str | None = None
) -> Dataset:
    """A dataset in the shape the model was trained on; the run's own where none is named."""
    config: dict[str, Any] = read_config(str(Path(run) / "config.yaml")) if data is None else {}
    source = data or str(config.get("data", ""))
    if not source or source == "arrays":
        raise UserError("this run was trained on arrays; say what to measure on with --data")
    height, width, channels = predictor.shape if len(predictor.shape) == 3 else (0, 0, 0)
    mode = "gray" if channels == 1 else "rgb"
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
