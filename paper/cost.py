"""How long a grid would take, from one measured step per setting."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.cost import alternate
from benchmarks.workloads import random_images, random_vectors
from vcc_infuse.algorithms import FixMatch
from vcc_infuse.bank.embed import head
from vcc_infuse.training.trainer import Trainer

from .banks import bank_config
from .cell import Cell
from .grid import threads_per_job
from .train import build_part

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
    options = cell.options
    data = str(options["data"])
    classes = CLASSES.get(data, 10)
    batch_size = int(options["batch_size"])
    bank = bank_config(options)
    if bank is not None:
        rows = random_vectors(2048, WIDTH, classes, (bank.weak, bank.strong))
        trainer = Trainer(head(bank), FixMatch(), steps=10**6, batch_size=batch_size, progress=False)
        return statistics.median(alternate({"step": trainer}, rows, 5)["step"])
    timed = min(batch_size, MAX_LABELED)
    images = random_images(int(options.get("size") or IMAGE_SIZES.get(data, 32)), classes, 512)
    model = build_part(options, "model")
    ratio = options.get("unlabeled_ratio")
    trainer = Trainer(model, FixMatch(), steps=10**6, batch_size=timed, unlabeled_ratio=ratio, progress=False)
    return statistics.median(alternate({"step": trainer}, images, 5)["step"]) * batch_size / timed
