"""Does speed cost accuracy? The same runs with one joint forward in single precision, with our step, and lazy.

    OMP_NUM_THREADS=1 python -m benchmarks accuracy --seeds 5 --out results/bench/accuracy
    OMP_NUM_THREADS=1 python -m benchmarks accuracy --data cifar10 --data-root DIR --labels 250 --out OUT

The first trains SmallConv on digits, the second heads on a bank of embedded views, with the options of the paper's
tables at scale frozen. Writes accuracy.json after every run, so that the same command continues, and accuracy.md.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paper.cell import Cell
from paper.scales import run_options
from paper.train import train_on_bank
from vcc_infuse import FixMatch, FlexMatch, SmallConv, SSLData, Trainer
from vcc_infuse.cli.parser import Parser, integer
from vcc_infuse.data.split import balanced
from vcc_infuse.data.ssl_data import load
from vcc_infuse.utils.io import read_json, write_json, write_text

BASE = "joint forward, fp32"
STEPS: dict[str, dict[str, Any]] = {
    BASE: dict(joint_bn=True, precision="fp32"),
    "default": dict(),
    "lazy": dict(lazy=True),
}
METHODS = {"FixMatch": FixMatch, "FlexMatch": FlexMatch}
Run = dict[str, Any]


def main(argv: Sequence[str]) -> None:
    """Run what is missing, and write the page after every run."""
    options = read(argv)
    torch.set_num_threads(1)
    setting = {"data": options.data, "labels": options.labels, "steps": options.steps}
    stored = options.out.with_suffix(".json")
    runs: list[Run] = (read_json(stored) or {"runs": []})["runs"]
    runs = [run for run in runs if {name: run[name] for name in setting} == setting]
    done = {(run["method"], run["way"], run["seed"]) for run in runs}
    wanted = [(method, way, seed) for method in METHODS for seed in range(options.seeds) for way in STEPS]
    for method, way, seed in wanted:
        if (method, way, seed) not in done:
            error = train(method, way, seed, options)
            runs.append({**setting, "method": method, "way": way, "seed": seed, "error": error})
            write_json(stored, {"runs": runs})
            write_text(options.out.with_suffix(".md"), page(runs, options))
    print(page(runs, options))


def read(argv: Sequence[str]) -> Namespace:
    """Read and check the options."""
    parser = Parser("python -m benchmarks accuracy", "Compare errors of the fast step with those of a joint forward.")
    parser.add_argument("--data", default="digits", help="the dataset (digits)")
    parser.add_argument("--data-root", help="folder with the dataset, which is then trained on as a bank")
    parser.add_argument("--labels", type=integer(), default=40, help="labeled examples (40)")
    parser.add_argument("--steps", type=integer(), default=300, help="training steps (300)")
    parser.add_argument("--seeds", type=integer(), default=5, help="runs of each way (5)")
    parser.add_argument("--out", type=Path, default=Path("results/bench/accuracy"), help="writes OUT.json and OUT.md")
    return parser.read(argv)


def train(method: str, way: str, seed: int, options: Namespace) -> float:
    """The error of one run."""
    if options.data_root:
        setting = run_options("frozen", options.data, options.labels)
        cell = Cell({**setting, "algorithm": method, "seed": seed, **STEPS[way]})
        return float(train_on_bank(cell, options.data_root)["error"])
    dataset = load(options.data)
    data = SSLData(dataset, balanced(dataset.train.y, options.labels, dataset.classes, seed))
    common: dict[str, Any] = dict(steps=options.steps, eval_every=options.steps, batch_size=16, progress=False)
    trainer = Trainer(SmallConv(), METHODS[method](), seed=seed, device="cpu", **common, **STEPS[way])
    return float(trainer.fit(data)["error"])


def page(runs: Sequence[Run], options: Namespace) -> str:
    """The Markdown page of the runs so far."""
    scope = "--data-root DIR" if options.data_root else f"--steps {options.steps}"
    lines = [
        "# Error after equal steps",
        "",
        f"    OMP_NUM_THREADS=1 python -m benchmarks accuracy --data {options.data} --labels {options.labels} "
        f"{scope} --seeds {options.seeds} --out {options.out}",
        "",
        f"{options.data}, {options.labels} labels, {network(options)}. Differences are "
        "paired: same seed, same split, mean ± standard error.",
        "",
        "| method | step | error %, mean ± std | minus joint forward, points | errors by seed |",
        "|---|---|---|---|---|",
    ]
    rows = (row(runs, method, way) for method in METHODS for way in STEPS)
    return "\n".join([*lines, *filter(None, rows)]) + "\n"


def network(options: Namespace) -> str:
    """What is trained."""
    if options.data_root:
        return "a linear head on a bank, as at the scale frozen of `python -m paper`"
    return f"SmallConv, {options.steps} steps of 16/112 images"


def row(runs: Sequence[Run], method: str, way: str) -> str:
    """One line of the table; empty before the first pair of runs."""
    ours = errors(runs, method, way)
    base = errors(runs, method, BASE)
    seeds = sorted(ours.keys() & base.keys())
    if not seeds:
        return ""
    values = np.array([ours[seed] for seed in seeds])
    gaps = np.array([ours[seed] - base[seed] for seed in seeds])
    spread, deviation = (part.std(ddof=1) if len(part) > 1 else 0.0 for part in (values, gaps))
    gap = "" if way == BASE else f"{gaps.mean():+.2f} ± {deviation / len(gaps) ** 0.5:.2f}"
    by_seed = " ".join(f"{value:.1f}" for value in values)
    return f"| {method} | {way} | {values.mean():.2f} ± {spread:.2f} | {gap} | {by_seed} |"


def errors(runs: Sequence[Run], method: str, way: str) -> dict[int, float]:
    """Error by seed, in percent."""
    return {run["seed"]: 100 * run["error"] for run in runs if (run["method"], run["way"]) == (method, way)}
