"""What a calibrator and a selector cost: steps with and without them, timed in turns, and the ratio of their times."""

from __future__ import annotations

import statistics
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vcc_infuse.algorithms import Algorithm
from vcc_infuse.calibrators import Calibrator
from vcc_infuse.cli.finished_run import add_output, check_output
from vcc_infuse.cli.parser import Parser, add_device, integer, number, one_of
from vcc_infuse.cli.registry import find_class
from vcc_infuse.data.ssl_data import SSLData
from vcc_infuse.models import Backbone, SmallConv, WideResNet
from vcc_infuse.runs.folder import versions
from vcc_infuse.selectors import Selector
from vcc_infuse.selectors.pool import Pool
from vcc_infuse.training.trainer import Trainer
from vcc_infuse.utils.io import write_json

from .workloads import random_images

WARMUP_ROUNDS = 2


def main(argv: Sequence[str]) -> None:
    """Time steps with and without a calibrator in turns, and print the ratio of their times."""
    options = read(argv)
    check_output(options.output, options.overwrite)
    trainers = make_trainers(options)
    count = max(2048, options.batch_size * options.unlabeled_ratio)
    times = alternate(trainers, random_images(options.size, options.classes, count), options.rounds)
    ratios = np.divide(times["with"], times["without"])
    low, middle, high = np.percentile(ratios, [25, 50, 75])
    for name, seconds in times.items():
        print(f"{name:>8} {options.calibrator}: median {1e3 * statistics.median(seconds):.1f} ms per step")
    print(f"   ratio: median {middle:.3f}, quartiles {low:.3f} to {high:.3f}, over {options.rounds} rounds")
    figures = {**vars(options), "seconds": times, "ratio": middle, "quartiles": [low, high], "versions": versions()}
    if options.selector:
        figures |= whole_run(options, trainers["with"], statistics.median(times["with"]), middle)
    if options.output:
        write_json(Path(options.output), figures)


def read(argv: Sequence[str]) -> Namespace:
    """Read and check the options."""
    parser = Parser(
        "python -m benchmarks cost", "Measure the time of a training step with a calibrator over that without."
    )
    parser.add_argument("--algorithm", default="FixMatch", help="a method with pseudo labels (FixMatch)")
    parser.add_argument("--calibrator", default="Softmax", help="the calibrator to measure (Softmax)")
    parser.add_argument("--selector", help="also measure this selector, and estimate a whole run with it")
    parser.add_argument("--keep", type=number(0, 1, open_low=True), default=0.4, help="fraction it keeps (0.4)")
    parser.add_argument("--pool", type=integer(), default=50_000, help="unlabeled images of that run (50000)")
    parser.add_argument("--interval", type=integer(), default=40 * 1024, help="its steps between refreshes (40960)")
    parser.add_argument("--depth", type=integer(0), default=28, help="depth of the Wide ResNet; 0: SmallConv (28)")
    parser.add_argument("--width", type=integer(), default=2, help="width of the network (2)")
    parser.add_argument("--size", type=integer(), default=32, help="height and width of the images (32)")
    parser.add_argument("--classes", type=integer(2), default=10, help="number of classes (10)")
    parser.add_argument("--batch_size", type=integer(), default=64, help="labeled images per step (64)")
    parser.add_argument("--unlabeled_ratio", type=integer(), default=7, help="unlabeled images per labeled one (7)")
    parser.add_argument("--rounds", type=integer(), default=9, help="timed steps of each (9)")
    parser.add_argument("--precision", **one_of("auto", "fp32", "bf16", "fp16"), default="auto", help="(auto)")
    add_device(parser)
    add_output(parser, "also write the results to this JSON file")
    return parser.read(argv)


def make_trainers(options: Namespace) -> dict[str, Trainer]:
    """The algorithm alone, and with calibrator and selector."""
    method = find_class("algorithm", options.algorithm, Algorithm)
    calibrator = find_class("calibrator", options.calibrator, Calibrator)()
    selector = find_class("selector", options.selector, Selector)(keep=options.keep) if options.selector else None
    model: Backbone = WideResNet(options.depth, options.width) if options.depth else SmallConv(options.width)
    common: dict[str, Any] = dict(steps=10**6, precision=options.precision, device=options.device, progress=False)
    common |= dict(batch_size=options.batch_size, unlabeled_ratio=options.unlabeled_ratio)
    return {
        "without": Trainer(model, method(), **common),
        "with": Trainer(model, method(), calibrator, selector, **common),
    }


def whole_run(options: Namespace, trainer: Trainer, step: float, ratio: float) -> dict[str, float]:
    """The time of a run with core sets over that of a full run, with or without the calibrator in the full run."""
    share = scan_seconds(trainer) * options.pool / (options.interval * step)
    same = options.keep * (1 + share)
    whole = same * ratio
    print(f"  selecting from {options.pool} images takes {100 * share:.2f} % of the {options.interval} steps between")
    print(f"   whole run at {100 * options.keep:.0f} % of the steps over the full run:")
    print(f"   {same:.3f} with {options.calibrator} in both, {whole:.3f} with it only in the short one")
    return {"selection_share": share, "whole_with": same, "whole": whole}


def alternate(trainers: dict[str, Trainer], data: SSLData, rounds: int) -> dict[str, list[float]]:
    """Seconds of each trainer's steps. Trainers take turns, so that other load on the machine slows them alike.

    Steps are numbered from the middle of the run, after every warm-up of a method. The first rounds are not counted.
    """
    seconds: dict[str, list[float]] = {name: [] for name in trainers}
    for trainer in trainers.values():
        trainer.prepare(data)
    for turn in range(rounds + WARMUP_ROUNDS):
        for name, trainer in trainers.items():
            began = time.perf_counter()
            trainer.train_step(trainer.steps // 2 + turn)
            seconds[name].append(time.perf_counter() - began)
    return {name: values[WARMUP_ROUNDS:] for name, values in seconds.items()}


def scan_seconds(trainer: Trainer, rounds: int = 3) -> float:
    """Median seconds per pool image of one selection; `trainer` is prepared and has a selector."""
    state = trainer.state_
    scheduler = state.coreset_scheduler
    assert scheduler.selector is not None
    seconds = []
    for turn in range(rounds):
        began = time.perf_counter()
        pool = Pool(
            batches=trainer.batches_,
            model=state.model,
            ema=state.ema.module,
            algorithm=state.algorithm,
            calibrator=state.calibrator,
            task=state.task,
            number=turn,
        )
        scheduler.selector.select(pool, scheduler.budget)
        seconds.append((time.perf_counter() - began) / pool.size)
    return statistics.median(seconds)
