"""How long a grid would take, from one measured step per setting."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.cost import alternate
from benchmarks.workloads import random_images, random_vectors
from vcc_infuse.run import prepare

from .cell import Cell
from .grid import threads_per_job

CLASSES = {"cifar100": 100}
IMAGE_SIZES = {"digits": 8, "fashion_mnist": 28, "stl10": 96}
# Steps are timed with at most this many labeled images and scaled up: this is quick even for large networks.
MAX_LABELED = 8
WIDTH = 1280  # features of EfficientNet-Lite0


def forecast(cells: Sequence[Cell], folder: Path, jobs: int) -> list[str]:
    """One line per cell with its state, then the estimated time of those that are not finished."""
    states = {cell: state(cell, folder) for cell in cells}
    lines = [f"{states[cell]:<10} {cell.name}" for cell in states]
    todo = [cell for cell in states if states[cell] != "finished"]
    torch.set_num_threads(threads_per_job(jobs))
    hours = total_seconds(todo) / 3600
    return [
        *lines,
        f"{len(todo)} of {len(states)} cells to run; about {hours:.2f} hours of computing, {hours / jobs:.2f} with "
        f"jobs={jobs} (from one measured step of FixMatch per setting, without evaluation and embedding)",
    ]


def state(cell: Cell, folder: Path) -> str:
    """Finished, started or to do."""
    if cell.summary(folder) is not None:
        return "finished"
    return "started" if cell.started(folder) else "to do"


def total_seconds(cells: Sequence[Cell]) -> float:
    """Seconds for the steps of all cells; settings of equal cost are measured once."""
    measured: dict[str, float] = {}
    seconds = 0.0
    for cell in cells:
        key = cost_key(cell)
        if key not in measured:
            measured[key] = step_seconds(cell)
        keep = float(cell.options.get("selector.keep", 1)) if "selector" in cell.options else 1.0
        seconds += measured[key] * int(cell.options["steps"]) * keep
    return seconds


def cost_key(cell: Cell) -> str:
    """The options that the time of a step depends on."""
    names = ("data", "size", "batch_size", "unlabeled_ratio")
    model = [f"{name}={value}" for name, value in cell.options.items() if name.startswith("model")]
    return " ".join([str(cell.options.get(name)) for name in names] + model)


def step_seconds(cell: Cell) -> float:
    """The median time of five FixMatch steps on random images of the same shape, or on random rows of a bank."""
    parts = ("algorithm", "calibrator", "selector")
    setting = {name: value for name, value in cell.options.items() if name.partition(".")[0] not in parts}
    config = Cell({**setting, "algorithm": "FixMatch", "steps": 10**6, "head_init": "random"}).config()
    classes = CLASSES.get(str(setting["data"]), 10)
    if cell.on_bank:
        config = replace(config, model=None)
        data = random_vectors(2048, WIDTH, classes, (config.bank.weak, config.bank.strong))
        factor = 1.0
    else:
        batch_size = config.train_config().batch_size
        timed = min(batch_size, MAX_LABELED)
        config = replace(config, train={**config.train, "batch_size": timed})
        data = random_images(int(setting.get("size") or IMAGE_SIZES.get(str(setting["data"]), 32)), classes, 512)
        factor = batch_size / timed
    trainer = prepare(config, data).trainer
    return statistics.median(alternate({"step": trainer}, data, 5)["step"]) * factor
