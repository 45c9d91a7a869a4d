"""`vcc-infuse bench`: parts of the benchmark by name or, without a name, the cost of a calibrator and a selector."""

from __future__ import annotations

import statistics
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vcc_infuse.algorithms import Algorithm
from vcc_infuse.calibrators import Calibrator
from vcc_infuse.cli.finished_run import add_output, check_output
from vcc_infuse.cli.parsing import Parser, add_device, integer, number, one_of
from vcc_infuse.cli.registry import find_class
from vcc_infuse.models import Backbone, SmallConv, WideResNet
from vcc_infuse.runs.folder import versions
from vcc_infuse.selectors import Selector
from vcc_infuse.training.trainer import Trainer
from vcc_infuse.utils.io import write_json

from .augment import measure_augment
from .growth import measure_growth
from .inference import measure_inference
from .memory import measure_memory
from .page import Part, write
from .processes import measure_processes
from .runs import measure_selection
from .startup import measure_startup
from .steps import measure_steps
from .timing import alternate, scan_seconds
from .workloads import NETWORKS, random_images

PARTS: dict[str, Callable[[Namespace], Part]] = {
    "startup": lambda options: measure_startup(options.rounds),
    "augment": lambda options: measure_augment(options.rounds),
    "steps": lambda options: measure_steps(options.rounds, options.batch_size, options.size, options.network),
    "selection": lambda options: measure_selection(options.rounds),
    "inference": lambda options: measure_inference(options.rounds),
    "memory": lambda options: measure_memory(),
    "growth": lambda options: measure_growth(options.rounds),
    "processes": lambda options: measure_processes(options.rounds),
}


def run(argv: Sequence[str]) -> None:
    """Measure the named parts; without a name, the calibrator and selector that the options choose."""
    if argv and not argv[0].startswith("-"):
        run_parts(argv)
    else:
        run_cost(argv)


def run_parts(argv: Sequence[str]) -> None:
    """Measure parts one after the other, and write and print each as soon as it is there."""
    parser = Parser("vcc-infuse bench PART", f"Measure parts of the benchmark: {', '.join(PARTS)}, or all.")
    parser.add_argument("parts", nargs="+", **one_of(*PARTS, "all"), help="what to measure")
    parser.add_argument("--rounds", type=integer(), default=5, help="turns of each variant (5)")
    parser.add_argument("--batch_size", type=integer(), default=16, help="labeled images per step of `steps` (16)")
    parser.add_argument("--size", type=integer(8), default=32, help="height and width of its images (32)")
    parser.add_argument("--network", **one_of(*NETWORKS), help="only this network of `steps` (all of them)")
    parser.add_argument("--out", default="results/bench", help="folder of the JSON and Markdown files (results/bench)")
    options = parser.read(argv)
    Path(options.out).mkdir(parents=True, exist_ok=True)
    command = " ".join(["OMP_NUM_THREADS=1 vcc-infuse bench", *argv])
    for name in PARTS if "all" in options.parts else options.parts:
        print(write(PARTS[name](options), Path(options.out), command), flush=True)


def run_cost(argv: Sequence[str]) -> None:
    """Time steps with and without a calibrator in turns, and print the ratio of their times."""
    options = read(argv)
    check_output(options.output, options.overwrite)
    trainers = make_trainers(options)
    count = max(2048, options.batch_size * options.unlabeled_ratio)
    times = alternate(trainers, random_images(options.size, options.classes, count), options.rounds)
    ratios = [b / a for a, b in zip(times["without"], times["with"], strict=True)]
    low, middle, high = np.percentile(ratios, [25, 50, 75])
    for name, values in times.items():
        print(f"{name:>8} {options.calibrator}: median {1e3 * statistics.median(values):.1f} ms per step")
    print(f"   ratio: median {middle:.3f}, quartiles {low:.3f} to {high:.3f}, over {options.rounds} rounds")
    found = {**vars(options), "seconds": times, "ratio": middle, "quartiles": [low, high], "versions": versions()}
    if options.selector:
        found |= whole_run(options, trainers["with"], statistics.median(times["with"]), middle)
    if options.output:
        write_json(Path(options.output), found)


def read(argv: Sequence[str]) -> Namespace:
    """The options, checked."""
    about = f"`bench PART` measures a part of the benchmark: {', '.join(PARTS)}, or all."
    parser = Parser(
        "vcc-infuse bench", f"Measure the time of a training step with a calibrator over that without. {about}"
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
