"""`python -m benchmarks PART`: parts that are timed and written as pages, and studies with options of their own.

Variants of a part take turns, so that other load on the machine slows them alike.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

from vcc_infuse.cli.main import run_guarded
from vcc_infuse.cli.parser import Parser, integer, one_of
from vcc_infuse.errors import UserError
from vcc_infuse.utils.suggest import did_you_mean

from .augment import measure_augment
from .growth import measure_growth
from .inference import measure_inference
from .memory import measure_memory
from .page import Part, write, write_times
from .processes import measure_processes
from .selection import measure_selection
from .startup import measure_startup
from .steps import measure_steps
from .workloads import NETWORKS

PROG = "python -m benchmarks"
LONG = {"startup": 3, "selection": 2}
"""Turns of parts whose turns are long, at most, so that `all` ends within half an hour."""
PARTS: dict[str, Callable[[Namespace], Part]] = {
    "startup": lambda options: measure_startup(options.rounds),
    "augment": lambda options: measure_augment(options.rounds),
    "steps": lambda options: measure_steps(
        options.rounds, options.batch_size, options.size, options.network, only=options.variants
    ),
    "selection": lambda options: measure_selection(options.rounds),
    "inference": lambda options: measure_inference(options.rounds),
    "memory": lambda options: measure_memory(),
    "growth": lambda options: measure_growth(options.rounds),
    "processes": lambda options: measure_processes(options.rounds),
}
STUDIES = {
    "cost": "a step with a calibrator and a selector over one without",
    "accuracy": "whether the fast step costs accuracy",
    "batchnorm": "which BatchNorm statistics should normalize the weak view",
    "cheaper": "what calibrators lose that learn in fewer steps",
    "check": "whether a step got slower than the committed ratios",
    "choose": "whether labels choose the best network and size",
    "cluster": "what a million images cost in a sharded bank, and a plan for a hundred million",
    "compare": "methods on the same splits, seeds and steps",
    "embed": "rate and memory of embedding",
    "engines": "ONNX Runtime against PyTorch for frozen networks",
    "estimator": "SSLClassifier on feature vectors against logistic regression",
    "features": "arrays of features of a dataset, on which others compare",
    "finetune": "fine-tuning where frozen features are weak",
    "hand_out": "whether a cross-validated run is ever behind its probe, and its confidence",
    "human_minutes": "minutes of simulated people to a classifier, and whether promises on bulk labels hold",
    "label_heads": "the quick head and the default method of the labeling page",
    "label_server": "memory and latency of the labeling page with many photos",
    "lazy": "what lazy strong views save",
    "methods": "which method and calibrator is best on frozen features",
    "minutes": "error against minutes, for scikit-learn and for this library",
    "neighbors": "what the graph of nearest rows finds of what an exact search finds",
    "pool_growth": "time and memory of every part that touches the pool, up to a million rows",
    "pools": "unknown images, copies, wrong labels, class shares and suggestions in messy pools",
    "pool_training": "training where the pool has other class shares, or images of no class",
    "promises": "whether the shares of wrong labels that Evidence promises are kept",
    "profile_step": "where the time of a step goes",
    "rivals": "scikit-learn on the same features, and a plain PyTorch loop that embeds",
    "quantized": "int8 and OpenVINO against ONNX Runtime in float32",
    "select_stream": "time and memory of ranking up to ten million rows",
    "selection_trial": "other rules of selection",
    "views": "how many views of how many pixels pay",
    "whole": "the time from a zip of photos to a trained model",
}
"""Modules whose `main` reads its own options, and what they measure."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status; a user's mistake costs one line and status 2."""
    return run_guarded(run, list(sys.argv[1:] if argv is None else argv), PROG)


def run(argv: Sequence[str]) -> int:
    """Run the study that the first word names, or measure parts."""
    if argv and argv[0] in STUDIES:
        return import_module(f"{__package__}.{argv[0]}").main(argv[1:]) or 0
    options = read(argv)
    folder = Path(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    command = " ".join(["OMP_NUM_THREADS=1", PROG, *map(shlex.quote, argv)])
    asked = options.rounds
    for name in PARTS if "all" in options.parts else options.parts:
        options.rounds = min(asked, LONG.get(name, asked))
        began = time.monotonic()
        worked = sum(os.times()[:4])
        part = PARTS[name](options)
        part.minutes = (time.monotonic() - began) / 60
        part.cpu_minutes = (sum(os.times()[:4]) - worked) / 60
        print(write(part, folder, command), flush=True)
    write_times(folder, PARTS)
    return 0


def read(argv: Sequence[str]) -> Namespace:
    """Read and check the options of parts."""
    studies = "; ".join(f"{name}: {text}" for name, text in STUDIES.items())
    parser = Parser(PROG, f"Measure parts of the benchmark: {', '.join(PARTS)}, or all.",
                    f"Studies with options of their own (`{PROG} NAME --help`): {studies}.")  # fmt: skip
    parser.add_argument("parts", nargs="+", metavar="PART", help="what to measure")
    parser.add_argument(
        "--rounds", type=integer(), default=5, help="turns of each variant (5; startup at most 3, selection 2)"
    )
    parser.add_argument("--batch_size", type=integer(), default=16, help="labeled images per step of `steps` (16)")
    parser.add_argument("--size", type=integer(8), default=32, help="height and width of its images (32)")
    parser.add_argument("--network", **one_of(*NETWORKS), help="only this network of `steps` (all of them)")
    parser.add_argument("--variants", nargs="+", default=[], help="only these lines of `steps` (all of them)")
    parser.add_argument("--out", default="results/bench", help="folder of the JSON and Markdown files (results/bench)")
    options = parser.read(argv)
    names = [*PARTS, "all", *STUDIES]
    for part in options.parts:
        if part not in names:
            raise UserError(f"{part} is not a part{did_you_mean(part, names)}; choose one of {', '.join(names)}")
        if part in STUDIES:
            raise UserError(f"{part} has options of its own and must come first and alone, as in: {PROG} {part}")
    return options


if __name__ == "__main__":
    sys.exit(main())
