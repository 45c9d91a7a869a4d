"""What do lazy strong views save? One training step, eager against lazy, at fixed shares of pseudo labels that count.

OMP_NUM_THREADS=1 python benchmarks/lazy.py --out results/lazy.md
"""

import argparse
import platform
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks.timing import WARMUP_ROUNDS
from benchmarks.workloads import Covered, random_images, random_vectors
from vcc_infuse import Identity, SmallConv, Trainer, WideResNet
from vcc_infuse.utils.io import write_json, write_text

COVERAGES = (1.0, 0.3, 0.05)
OPTIONS = dict(steps=2**20, precision="fp32", device="cpu", progress=False)


# Data, model, labeled batch and rounds; seven unlabeled rows per labeled one.
CASES = {
    "SmallConv, 16/112 images of 32 px": (lambda: random_images(32, 10, 2000), SmallConv, 16, 1.0),
    "WRN-10-1, 16/112 images of 32 px": (lambda: random_images(32, 10, 2000), lambda: WideResNet(10, 1), 16, 0.6),
    "head 1280 → 10 on a bank, 32/224 rows": (lambda: random_vectors(5000, 1280, 10, (2, 4)), Identity, 32, 3.0),
}


def measure(data, model, batch_size, rounds):
    """CPU seconds of every step of an eager run and of lazy ones, which take turns."""
    trainers = {"eager": Trainer(model(), Covered(1.0), batch_size=batch_size, **OPTIONS)}
    for share in COVERAGES:
        trainers[f"lazy {share:.0%}"] = Trainer(model(), Covered(share), batch_size=batch_size, lazy=True, **OPTIONS)
    for trainer in trainers.values():
        trainer.prepare(data)
    seconds = {name: [] for name in trainers}
    for number in range(rounds + WARMUP_ROUNDS):
        for name, trainer in trainers.items():
            began = time.process_time()
            trainer.train_step(number)
            seconds[name].append(time.process_time() - began)
    return {name: values[WARMUP_ROUNDS:] for name, values in seconds.items()}


def quartiles(values, form):
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75))
    return f"{middle:{form}} ({low:{form}}–{high:{form}})"


def page(found, versions):
    """The Markdown table: milliseconds per step, and the ratio of the lazy to the eager step of the same round."""
    names = list(next(iter(found.values())))
    lines = [
        "# Lazy strong views: time per step",
        "",
        "    OMP_NUM_THREADS=1 python benchmarks/lazy.py --out results/lazy.md",
        "",
        "CPU milliseconds per training step (augmentation, forward, backward, optimizer, EMA), one thread, fp32:",
        "median (quartiles) over rounds in which all variants take turns. FlexMatch, with the given share of pseudo",
        "labels chosen at random. Below each time its ratio to the eager step of the same round. The data are noise:",
        "the times say nothing about accuracy. Other work ran on the same machine: only ratios mean something.",
        "",
        f"| | {' | '.join(names)} | rounds |",
        f"|---|{'---|' * (len(names) + 1)}",
    ]
    for case, seconds in found.items():
        eager = np.array(seconds["eager"])
        cells = [quartiles(1000 * np.array(seconds[name]), ".1f") for name in names]
        ratios = ["", *(f"<br>{quartiles(np.array(seconds[name]) / eager, '.2f')}" for name in names[1:])]
        row = " | ".join(cell + ratio for cell, ratio in zip(cells, ratios, strict=True))
        lines.append(f"| {case} | {row} | {len(eager)} |")
    return "\n".join([*lines, "", f"Measured with {versions} by `benchmarks/lazy.py`.", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/lazy.md"))
    parser.add_argument("--rounds", type=int, default=60, help="steps of each variant, times the factor of the case")
    args = parser.parse_args()
    torch.set_num_threads(1)
    began = time.process_time()
    found = {
        case: measure(data(), model, batch_size, round(factor * args.rounds))
        for case, (data, model, batch_size, factor) in CASES.items()
    }
    versions = f"torch {torch.__version__}, Python {platform.python_version()}"
    write_json(args.out.with_suffix(".json"), {"versions": versions, "seconds": found})
    write_text(args.out, page(found, versions))
    print(page(found, versions), f"{time.process_time() - began:.0f} s of CPU in all")


if __name__ == "__main__":
    main()
