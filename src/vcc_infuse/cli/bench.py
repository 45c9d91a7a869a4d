"""`vcc-infuse bench`: what a plug-in costs, as a ratio of step times measured in turns on random images."""

from __future__ import annotations

import statistics
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .. import algorithms, calibrators, selectors
from ..algorithms import Algorithm
from ..benchmarking import alternate, random_images, scan_seconds
from ..calibrators import Calibrator
from ..errors import UserError
from ..models import Backbone, SmallConv, WideResNet
from ..runs.folder import versions
from ..selectors import Selector
from ..training.trainer import Trainer
from ..utils.io import write_json
from .parsing import Parser, check_class


def run(argv: Sequence[str]) -> None:
    """Time steps with and without a calibrator, alternating, and print the ratio of the medians."""
    options = read(argv)
    trainers = make_trainers(options)
    data = random_images(options.size, options.classes, max(2048, options.batch * options.ratio))
    times = alternate(trainers, data, options.rounds)
    ratios = [b / a for a, b in zip(times["without"], times["with"], strict=True)]
    low, middle, high = np.percentile(ratios, [25, 50, 75])
    for name, values in times.items():
        print(f"{name:>8} {options.calibrator}: median {1e3 * statistics.median(values):.1f} ms a step")
    print(f"   ratio: median {middle:.3f}, quartiles {low:.3f} to {high:.3f}, over {options.rounds} rounds")
    figures = {**vars(options), "seconds": times, "ratio": middle, "quartiles": [low, high], "versions": versions()}
    if options.selector:
        figures |= whole_run(options, trainers["with"], statistics.median(times["with"]), middle)
    if options.output:
        write_json(Path(options.output), figures)


def read(argv: Sequence[str]) -> Namespace:
    """The options, checked."""
    parser = Parser(prog="vcc-infuse bench", description="Step time with a calibrator over step time without.")
    parser.add_argument("--algorithm", default="FixMatch", help="a pseudo-label method")
    parser.add_argument("--calibrator", default="Softmax", help="the plug-in whose price is asked for")
    parser.add_argument("--selector", help="also the price of choosing core sets, and of a whole run with them")
    parser.add_argument("--keep", type=float, default=0.4, help="share that the selector keeps")
    parser.add_argument("--pool", type=int, default=50_000, help="unlabeled images of the run that is reckoned")
    parser.add_argument("--interval", type=int, default=40 * 1024, help="its steps between two refreshes")
    parser.add_argument("--depth", type=int, default=28, help="depth of the Wide ResNet; 0 takes SmallConv")
    parser.add_argument("--width", type=int, default=2, help="width of the network")
    parser.add_argument("--size", type=int, default=32, help="side of the images")
    parser.add_argument("--classes", type=int, default=10, help="number of classes")
    parser.add_argument("--batch", type=int, default=64, help="labeled images a step")
    parser.add_argument("--ratio", type=int, default=7, help="unlabeled images for each labeled one")
    parser.add_argument("--rounds", type=int, default=9, help="timed steps of each")
    parser.add_argument("--precision", default="auto", help="auto, fp32, bf16 or fp16")
    parser.add_argument("-o", "--output", help="also write the figures to this JSON file")
    options = parser.read(argv)
    check_class("algorithm", options.algorithm, Algorithm)
    check_class("calibrator", options.calibrator, Calibrator)
    if options.selector:
        check_class("selector", options.selector, Selector)
    if min(options.rounds, options.batch, options.ratio, options.pool, options.interval, options.classes - 1) < 1:
        raise UserError("--rounds, --batch, --ratio, --pool and --interval must be at least 1, --classes at least 2")
    return options


def make_trainers(options: Namespace) -> dict[str, Trainer]:
    """The method alone, and with its plug-ins."""
    model: Backbone = WideResNet(options.depth, options.width) if options.depth else SmallConv(options.width)
    common = dict(steps=10**6, batch=options.batch, ratio=options.ratio, precision=options.precision, progress=False)
    method = getattr(algorithms, options.algorithm)
    plug_in = getattr(calibrators, options.calibrator)
    chooser = getattr(selectors, options.selector)(keep=options.keep) if options.selector else None
    return {
        "without": Trainer(model, method(), **common),
        "with": Trainer(model, method(), plug_in(), chooser, **common),
    }


def whole_run(options: Namespace, trainer: Trainer, step: float, ratio: float) -> dict[str, float]:
    """What a run with core sets takes of a full run's time, with the calibrator or without: from measured parts."""
    share = scan_seconds(trainer) * options.pool / (options.interval * step)
    same = options.keep * (1 + share)
    whole = same * ratio
    print(f"  choosing among {options.pool} images takes {100 * share:.2f} % of the {options.interval} steps between")
    print(f"   whole run at {100 * options.keep:.0f} % of the steps over the full run:")
    print(f"   {same:.3f} with {options.calibrator} in both, {whole:.3f} with it in the short one")
    return {"selection_share": share, "whole_with": same, "whole": whole}
