"""What do lazy strong views save? One training step, eager against lazy, at fixed shares of pseudo labels that count.

OMP_NUM_THREADS=1 python -m benchmarks lazy --out results/lazy.md
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from vcc_infuse import Identity, SmallConv, SSLData, Trainer, WideResNet
from vcc_infuse.cli.parser import Parser, integer
from vcc_infuse.utils.io import write_json, write_text

from .cost import WARMUP_ROUNDS
from .workloads import Covered, random_images, random_vectors

COVERAGES = (1.0, 0.3, 0.05)
OPTIONS: dict[str, Any] = dict(steps=2**20, precision="fp32", device="cpu", progress=False)
Seconds = dict[str, list[float]]


class Workload(NamedTuple):
    """Data, network and labeled rows per step, with seven unlabeled rows per labeled one."""

    data: Callable[[], SSLData]
    model: Callable[[], nn.Module]
    batch_size: int
    rounds_factor: float


WORKLOADS = {
    "SmallConv, 16/112 images of 32 px": Workload(lambda: random_images(32, 10, 2000), SmallConv, 16, 1.0),
    "WRN-10-1, 16/112 images of 32 px": Workload(
        lambda: random_images(32, 10, 2000), lambda: WideResNet(10, 1), 16, 0.6
    ),
    "head 1280 → 10 on a bank, 32/224 rows": Workload(
        lambda: random_vectors(5000, 1280, 10, (2, 4)), Identity, 32, 3.0
    ),
}


def main(argv: Sequence[str]) -> None:
    """Measure every workload and write the table."""
    parser = Parser("python -m benchmarks lazy", "Time a training step, eager against lazy.")
    parser.add_argument("--out", type=Path, default=Path("results/lazy.md"), help="the Markdown file")
    rounds = "steps of each variant, times the factor of the workload (60)"
    parser.add_argument("--rounds", type=integer(), default=60, help=rounds)
    options = parser.read(argv)
    torch.set_num_threads(1)
    began = time.process_time()
    seconds = {name: measure(workload, options.rounds) for name, workload in WORKLOADS.items()}
    versions = f"torch {torch.__version__}, Python {platform.python_version()}"
    write_json(options.out.with_suffix(".json"), {"versions": versions, "seconds": seconds})
    write_text(options.out, page(seconds, versions))
    print(page(seconds, versions), f"{time.process_time() - began:.0f} s of CPU in all")


def measure(workload: Workload, rounds: int) -> Seconds:
    """CPU seconds of every step of an eager run and of lazy ones, which take turns."""
    common = {**OPTIONS, "batch_size": workload.batch_size}
    trainers = {"eager": Trainer(workload.model(), Covered(1.0), **common)}
    for share in COVERAGES:
        trainers[f"lazy {share:.0%}"] = Trainer(workload.model(), Covered(share), lazy=True, **common)
    data = workload.data()
    for trainer in trainers.values():
        trainer.prepare(data)
    seconds: Seconds = {name: [] for name in trainers}
    for number in range(round(workload.rounds_factor * rounds) + WARMUP_ROUNDS):
        for name, trainer in trainers.items():
            began = time.process_time()
            trainer.train_step(number)
            seconds[name].append(time.process_time() - began)
    return {name: values[WARMUP_ROUNDS:] for name, values in seconds.items()}


def page(measured: dict[str, Seconds], versions: str) -> str:
    """The Markdown table: milliseconds per step, and the ratio of the lazy to the eager step of the same round."""
    names = list(next(iter(measured.values())))
    lines = [
        "# Lazy strong views: time per step",
        "",
        "    OMP_NUM_THREADS=1 python -m benchmarks lazy --out results/lazy.md",
        "",
        "CPU milliseconds per training step (augmentation, forward, backward, optimizer, EMA), one thread, fp32:",
        "median (quartiles) over rounds in which all variants take turns. FlexMatch, with the given share of pseudo",
        "labels chosen at random. Below each time its ratio to the eager step of the same round. The data are noise:",
        "the times say nothing about accuracy. Other work ran on the same machine: only ratios mean something.",
        "",
        f"| | {' | '.join(names)} | rounds |",
        f"|---|{'---|' * (len(names) + 1)}",
    ]
    for name, seconds in measured.items():
        eager = np.array(seconds["eager"])
        times = [quartiles(1000 * np.array(seconds[variant]), ".1f") for variant in names]
        ratios = [f"<br>{quartiles(np.array(seconds[variant]) / eager, '.2f')}" for variant in names[1:]]
        cells = " | ".join(time + ratio for time, ratio in zip(times, ["", *ratios], strict=True))
        lines.append(f"| {name} | {cells} | {len(eager)} |")
    return "\n".join([*lines, "", f"Measured with {versions} by `benchmarks/lazy.py`.", ""])


def quartiles(values: np.ndarray, form: str) -> str:
    """Median and quartiles."""
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75))
    return f"{middle:{form}} ({low:{form}}–{high:{form}})"
