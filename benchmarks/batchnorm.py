"""Which BatchNorm statistics should normalize the weak view? Three answers, FixMatch on digits, same seeds and steps.

python benchmarks/batchnorm.py --seeds 3 --out results/batchnorm.md
"""

import argparse
from pathlib import Path

import numpy as np
import torch

from vcc_infuse import FixMatch, SmallConv, SSLData, Trainer, load
from vcc_infuse.data.split import balanced
from vcc_infuse.types import Step

RUNNING = Step.forward_weak_strong


def own(step, weak, *inputs):
    """The weak view is normalized alone, the labeled and strong views together."""
    with torch.no_grad():
        step.weak = step.model(weak)
    return step.weak, step.forward(*inputs)


WAYS = {
    "its own batch": (own, False),
    "shared by all views (--joint_bn)": (RUNNING, True),
    "running (default)": (RUNNING, False),
}


def run(way, seed, labels, steps):
    Step.forward_weak_strong, joint = WAYS[way]
    dataset = load("digits")
    data = SSLData(dataset, balanced(dataset.train.y, labels, dataset.classes, seed))
    common = dict(steps=steps, eval_every=steps, batch_size=32, unlabeled_ratio=5, progress=False)
    return Trainer(SmallConv(), FixMatch(), joint_bn=joint, seed=seed, **common).fit(data)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--labels", type=int, default=20)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = [
        f"FixMatch on digits, {options.labels} labels, SmallConv, {options.steps} steps of 32 and 160 images.",
        "",
        f"    python benchmarks/batchnorm.py --seeds {options.seeds} --labels {options.labels} --steps {options.steps} "
        f"--out {options.out}",
        "",
        "| statistics for the weak view | error %, mean ± std | coverage % | least covered class % | errors by seed |",
        "|---|---|---|---|---|",
    ]
    for way in WAYS:
        runs = [run(way, seed, options.labels, options.steps) for seed in range(options.seeds)]
        errors = 100 * np.array([r["error"] for r in runs])
        covered = 100 * np.mean([r["pseudo_label_coverage"] for r in runs])
        least = 100 * np.mean([np.nanmin(r["pseudo_label_coverage_per_class"]) for r in runs])
        spread = errors.std(ddof=1) if len(errors) > 1 else 0
        each = " ".join(f"{e:.1f}" for e in errors)
        lines.append(f"| {way} | {errors.mean():.1f} ± {spread:.1f} | {covered:.0f} | {least:.0f} | {each} |")
        print(lines[-1], flush=True)
    options.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
