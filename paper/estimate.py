"""How long a grid would take, from one measured step per setting."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from benchmarks.timing import alternate
from benchmarks.workloads import random_images

from vcc_infuse.algorithms import FixMatch
from vcc_infuse.bank.bank import BankConfig
from vcc_infuse.bank.embed import head
from vcc_infuse.data.ssl_data import SSLData
from vcc_infuse.training.trainer import Trainer

from .backends import threads_per_job
from .cell import Cell, Options, bank_config, build_part

CLASSES = {"cifar100": 100}
IMAGE_SIZES = {"digits": 8, "fashion_mnist": 28, "stl10": 96}
# Steps are timed with at most this many labeled images and scaled up: this is quick even for large networks.
MAX_LABELED = 8
WIDTH = 1280  # features of EfficientNet-Lite0


def plan(cells: Sequence[Cell], folder: Path, jobs: int) -> list[str]:
    """One line per cell with its state, then the estimate."""
    unique = list(dict.fromkeys(cells))
    states = {cell: state(cell, folder) for cell in unique}
    lines = [f"{states[cell]:<10} {cell.name}" for cell in unique]
    todo = [cell for cell in unique if states[cell] != "finished"]
    torch.set_num_threads(threads_per_job(jobs))
    hours = total_seconds(todo) / 3600
    return [
        *lines,
        f"{len(todo)} of {len(unique)} cells to run; about {hours:.2f} hours of computing, {hours / jobs:.2f} with "
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
        kept = float(cell.options.get("selector.keep", 1)) if "selector" in cell.options else 1.0
        seconds += measured[key] * int(cell.options["steps"]) * kept
    return seconds


def cost_key(cell: Cell) -> str:
    """The options that the time of a step depends on."""
    names = ("data", "size", "batch_size", "unlabeled_ratio")
    model = [f"{k}={v}" for k, v in cell.options.items() if k.startswith("model")]
    return " ".join([str(cell.options.get(name)) for name in names] + model)


def step_seconds(cell: Cell) -> float:
    """The median time of five FixMatch steps on random images of the same shape, or on random rows of a bank."""
    options = cell.options
    if bank := bank_config(options):
        trainer = Trainer(head(bank), FixMatch(), steps=10**6, batch_size=int(options["batch_size"]), progress=False)
        return statistics.median(alternate({"step": trainer}, random_rows(options, bank), 5)["step"])
    data, batch_size = str(options["data"]), int(options["batch_size"])
    timed = min(batch_size, MAX_LABELED)
    images = random_images(int(options.get("size") or IMAGE_SIZES.get(data, 32)), CLASSES.get(data, 10), 512)
    ratio = options.get("unlabeled_ratio")
    trainer = Trainer(
        build_part(options, "model"), FixMatch(), steps=10**6, batch_size=timed, unlabeled_ratio=ratio, progress=False
    )
    return statistics.median(alternate({"step": trainer}, images, 5)["step"]) * batch_size / timed


def random_rows(options: Options, bank: BankConfig) -> SSLData:
    """Noise in the shape of a bank."""
    classes = CLASSES.get(str(options["data"]), 10)
    x = np.random.default_rng(0).standard_normal((2048, len(bank.names), WIDTH), dtype=np.float32)
    y = np.where(np.arange(len(x)) < 4 * classes, np.arange(len(x)) % classes, -1)
    return SSLData.from_arrays(x.astype(np.float16), y, slots=(bank.weak, bank.strong))
