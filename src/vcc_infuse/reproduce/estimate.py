"""How long a grid would take, from one measured step of every column."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from ..algorithms import FixMatch
from ..benchmarking import random_images
from ..models import Backbone, SmallConv, WideResNet
from ..training.trainer import Trainer
from .cell import Cell
from .grid import begun, threads_each

CLASSES = {"cifar100": 100}


SIDES = {"digits": 8, "fashion_mnist": 28, "stl10": 96}


LABELED = 8
"""Steps are timed with at most so many labeled images and scaled: a plan is quick for large networks, too."""


def plan(cells: Sequence[Cell], folder: Path, jobs: int) -> list[str]:
    """Lines: every cell with its state, then the estimate."""
    unique = list(dict.fromkeys(cells))
    states = {cell: state(cell, folder) for cell in unique}
    lines = [f"{states[cell]:<10} {cell.name}" for cell in unique]
    open_cells = [cell for cell in unique if states[cell] != "finished"]
    steps: dict[str, float] = {}
    torch.set_num_threads(threads_each(jobs))
    seconds = 0.0
    for cell in open_cells:
        shape = kind(cell)
        if shape not in steps:
            steps[shape] = step_seconds(cell)
        kept = float(cell.options.get("selector.keep", 1)) if "selector" in cell.options else 1.0
        seconds += steps[shape] * int(cell.options["steps"]) * kept
    total = f"{len(open_cells)} of {len(unique)} cells to run"
    hours = f"about {seconds / 3600:.2f} hours of computing, {seconds / 3600 / jobs:.2f} with --jobs {jobs}"
    return [*lines, f"{total}; {hours} (from a measured step of FixMatch in each setting; evaluation not counted)"]


def state(cell: Cell, folder: Path) -> str:
    """Finished, begun or to do."""
    if cell.summary(folder) is not None:
        return "finished"
    return "begun" if begun(cell, folder) else "to do"


def kind(cell: Cell) -> str:
    """What the time of a step depends on."""
    names = ("data", "size", "batch", "ratio")
    model = [f"{k}={v}" for k, v in cell.options.items() if k.startswith("model")]
    return " ".join([str(cell.options.get(name)) for name in names] + model)


def step_seconds(cell: Cell) -> float:
    """The median step of FixMatch on noise of the same shape, after two to warm up."""
    options = cell.options
    data = str(options["data"])
    batch, ratio = int(options["batch"]), int(options.get("ratio", FixMatch.ratio))
    small = min(batch, LABELED)
    images = random_images(int(options.get("size") or SIDES.get(data, 32)), CLASSES.get(data, 10), 512)
    trainer = Trainer(network(cell), FixMatch(), steps=10**6, batch=small, ratio=ratio, progress=False)
    trainer._build(images)
    seconds = []
    for number in range(7):
        began = time.perf_counter()
        trainer._step(number)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[2:]) * batch / small


def network(cell: Cell) -> Backbone:
    """The cell's model."""
    own = {k.removeprefix("model."): v for k, v in cell.options.items() if k.startswith("model.")}
    return {"WideResNet": WideResNet, "SmallConv": SmallConv}[str(cell.options["model"])](**own)
