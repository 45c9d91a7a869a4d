"""Which BatchNorm statistics should normalize the weak view? Three answers, FixMatch on digits, same seeds and steps.

python -m benchmarks batchnorm --seeds 3 --out results/batchnorm.md
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vcc_infuse import FixMatch, SmallConv, SSLData, Trainer
from vcc_infuse.cli.parser import Parser, integer
from vcc_infuse.data.split import balanced
from vcc_infuse.data.ssl_data import load
from vcc_infuse.types import Outputs, Step, WeakOutputs
from vcc_infuse.utils.io import write_text

RUNNING = Step.forward_weak_strong


def own_batch(step: Step, weak: Tensor, *inputs: Tensor) -> tuple[WeakOutputs, list[Outputs]]:
    """The weak view is normalized alone, the labeled and strong views together."""
    with torch.no_grad():
        outputs = step.model(weak)
    return WeakOutputs(*outputs), step.forward(*inputs)


STATISTICS: dict[str, tuple[Callable[..., Any], bool]] = {
    "its own batch": (own_batch, False),
    "shared by all views (--joint_bn)": (RUNNING, True),
    "running (default)": (RUNNING, False),
}
"""How the views pass through the network, and `joint_bn`."""


def main(argv: Sequence[str]) -> None:
    """Train with each kind of statistics and write the table."""
    parser = Parser("python -m benchmarks batchnorm", "Compare BatchNorm statistics for the weak view.")
    parser.add_argument("--seeds", type=integer(), default=3, help="runs of each (3)")
    parser.add_argument("--labels", type=integer(), default=20, help="labeled digits (20)")
    parser.add_argument("--steps", type=integer(), default=600, help="training steps (600)")
    parser.add_argument("--out", type=Path, required=True, help="the Markdown file")
    options = parser.read(argv)
    torch.set_num_threads(1)
    lines = [
        f"FixMatch on digits, {options.labels} labels, SmallConv, {options.steps} steps of 32 and 160 images.",
        "",
        f"    python -m benchmarks batchnorm --seeds {options.seeds} --labels {options.labels} "
        f"--steps {options.steps} --out {options.out}",
        "",
        "| statistics for the weak view | error %, mean ± std | coverage % | least covered class % | errors by seed |",
        "|---|---|---|---|---|",
    ]
    for name in STATISTICS:
        lines.append(row(name, [train(name, seed, options) for seed in range(options.seeds)]))
        print(lines[-1], flush=True)
    write_text(options.out, "\n".join(lines) + "\n")


def train(name: str, seed: int, options: Namespace) -> dict[str, Any]:
    """The summary of one run."""
    forward, joint = STATISTICS[name]
    dataset = load("digits")
    data = SSLData(dataset, balanced(dataset.train.y, options.labels, dataset.classes, seed))
    common: dict[str, Any] = dict(batch_size=32, unlabeled_ratio=5, joint_bn=joint, seed=seed, progress=False)
    trainer = Trainer(SmallConv(), FixMatch(), steps=options.steps, eval_every=options.steps, **common)
    Step.forward_weak_strong = forward  # type: ignore[method-assign]
    try:
        return trainer.fit(data)
    finally:
        Step.forward_weak_strong = RUNNING  # type: ignore[method-assign]


def row(name: str, runs: Sequence[dict[str, Any]]) -> str:
    """One line of the table."""
    errors = 100 * np.array([run["error"] for run in runs])
    covered = 100 * np.mean([run["pseudo_label_coverage"] for run in runs])
    least = 100 * np.mean([np.nanmin(run["pseudo_label_coverage_per_class"]) for run in runs])
    spread = errors.std(ddof=1) if len(errors) > 1 else 0
    by_seed = " ".join(f"{error:.1f}" for error in errors)
    return f"| {name} | {errors.mean():.1f} ± {spread:.1f} | {covered:.0f} | {least:.0f} | {by_seed} |"
