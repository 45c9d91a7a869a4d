"""`vcc-infuse bench`: what a plug-in costs, as a ratio of step times measured in turns on random images."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .. import algorithms, calibrators
from ..algorithms import Algorithm
from ..calibrators import Calibrator
from ..data.ssl import SSLData
from ..errors import UserError
from ..files import write_json
from ..models import Backbone, SmallConv, WideResNet
from ..run_folder import versions
from ..trainer import Trainer
from .options import check_class
from .simple import Parser


def run(argv: Sequence[str]) -> None:
    """Time steps with and without a calibrator, alternating, and print the ratio of the medians."""
    parser = Parser(prog="vcc-infuse bench", description="Step time with a calibrator over step time without.")
    parser.add_argument("--algorithm", default="FixMatch", help="a pseudo-label method")
    parser.add_argument("--calibrator", default="Softmax", help="the plug-in whose price is asked for")
    parser.add_argument("--depth", type=int, default=28, help="depth of the Wide ResNet; 0 takes SmallConv")
    parser.add_argument("--width", type=int, default=2, help="width of the network")
    parser.add_argument("--size", type=int, default=32, help="side of the images")
    parser.add_argument("--classes", type=int, default=10, help="number of classes")
    parser.add_argument("--batch", type=int, default=64, help="labelled images a step")
    parser.add_argument("--ratio", type=int, default=7, help="unlabelled images for each labelled one")
    parser.add_argument("--rounds", type=int, default=9, help="timed steps of each")
    parser.add_argument("--precision", default="auto", help="auto, fp32, bf16 or fp16")
    parser.add_argument("-o", "--output", help="also write the figures to this JSON file")
    options = parser.read(argv)
    check_class("algorithm", options.algorithm, Algorithm)
    check_class("calibrator", options.calibrator, Calibrator)
    if min(options.rounds, options.batch, options.ratio, options.classes - 1) < 1:
        raise UserError("--rounds, --batch and --ratio must be at least 1, --classes at least 2")
    model: Backbone = WideResNet(options.depth, options.width) if options.depth else SmallConv(options.width)
    data = random_images(options.size, options.classes, max(2048, options.batch * options.ratio))
    common = dict(steps=10**6, batch=options.batch, ratio=options.ratio, precision=options.precision, progress=False)
    method = getattr(algorithms, options.algorithm)
    plug_in = getattr(calibrators, options.calibrator)
    trainers = {
        "without": Trainer(model, method(), **common),
        "with": Trainer(model, method(), plug_in(), **common),
    }
    times = alternate(trainers, data, options.rounds)
    ratios = [b / a for a, b in zip(times["without"], times["with"], strict=True)]
    low, middle, high = np.percentile(ratios, [25, 50, 75])
    for name, values in times.items():
        print(f"{name:>8} {options.calibrator}: median {1e3 * statistics.median(values):.1f} ms a step")
    print(f"   ratio: median {middle:.3f}, quartiles {low:.3f} to {high:.3f}, over {options.rounds} rounds")
    if options.output:
        figures = {**vars(options), "seconds": times, "ratio": middle, "quartiles": [low, high], "versions": versions()}
        write_json(Path(options.output), figures)


def random_images(size: int, classes: int, count: int) -> SSLData:
    """Noise in the shape of a dataset."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (count, size, size, 3), dtype=np.uint8)
    y = np.where(np.arange(count) < 8 * classes, np.arange(count) % classes, -1)
    return SSLData.from_arrays(x, y, x[:classes], np.arange(classes))


def alternate(trainers: dict[str, Trainer], data: SSLData, rounds: int) -> dict[str, list[float]]:
    """Seconds of each trainer's steps, taken in turns, so that a busy machine slows them alike.

    Steps are numbered from the middle of the run, where every warm-up is over; the first two of each are not counted.
    """
    times: dict[str, list[float]] = {name: [] for name in trainers}
    for trainer in trainers.values():
        trainer._build(data)
    for number in range(rounds + 2):
        for name, trainer in trainers.items():
            began = time.perf_counter()
            trainer._step(trainer.steps // 2 + number)
            times[name].append(time.perf_counter() - began)
    return {name: values[2:] for name, values in times.items()}
