"""Does speed cost accuracy? The same runs with one joint forward in single precision, with our step, and lazy.

    OMP_NUM_THREADS=1 python benchmarks/accuracy.py --seeds 5 --out results/bench/accuracy
    OMP_NUM_THREADS=1 python benchmarks/accuracy.py --data cifar10 --data-root DIR --labels 250 --out OUT

The first trains SmallConv on digits, the second heads on a bank of embedded views, with the options of `reproduce` at
scale frozen. Writes accuracy.json after every run, so that the same command continues, and accuracy.md.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch

from paper.banks import train_on_bank
from paper.datasets import locate
from paper.scales import run_options
from vcc_infuse import FixMatch, FlexMatch, SmallConv, SSLData, Trainer, load
from vcc_infuse.data.split import balanced
from vcc_infuse.utils.io import write_json, write_text

WAYS = {
    "joint forward, fp32": dict(joint_bn=True, precision="fp32"),
    "default": dict(),
    "lazy": dict(lazy=True),
}
METHODS = {"FixMatch": FixMatch, "FlexMatch": FlexMatch}


def run(method, way, seed, options):
    if options.data_root:
        preset = {**run_options("frozen", options.data, options.labels), **locate(options.data, options.data_root)}
        return train_on_bank({**preset, "algorithm": method, "seed": seed, **WAYS[way]})["error"]
    dataset = load(options.data)
    data = SSLData(dataset, balanced(dataset.train.y, options.labels, dataset.classes, seed))
    common = dict(steps=options.steps, eval_every=options.steps, batch_size=16, progress=False, device="cpu")
    return Trainer(SmallConv(), METHODS[method](), seed=seed, **common, **WAYS[way]).fit(data)["error"]


def page(runs, options):
    lines = [
        "# Error after equal steps",
        "",
        f"    OMP_NUM_THREADS=1 python benchmarks/accuracy.py --data {options.data} --labels {options.labels} "
        + ("--data-root DIR " if options.data_root else f"--steps {options.steps} ")
        + f"--seeds {options.seeds} --out {options.out}",
        "",
        f"{options.data}, {options.labels} labels, {where(options)}. Differences are "
        "paired: same seed, same split, mean ± standard error.",
        "",
        "| method | step | error %, mean ± std | minus joint forward, points | errors by seed |",
        "|---|---|---|---|---|",
    ]
    for method in METHODS:
        base = errors(runs, method, "joint forward, fp32")
        for way in WAYS:
            own = errors(runs, method, way)
            seeds = sorted(own.keys() & base.keys())
            if not seeds:
                continue
            values, gaps = np.array([own[s] for s in seeds]), np.array([own[s] - base[s] for s in seeds])
            spread, doubt = (x.std(ddof=1) if len(x) > 1 else 0.0 for x in (values, gaps))
            gap = (
                "" if own is base or way.startswith("joint") else f"{gaps.mean():+.2f} ± {doubt / len(gaps) ** 0.5:.2f}"
            )
            each = " ".join(f"{value:.1f}" for value in values)
            lines.append(f"| {method} | {way} | {values.mean():.2f} ± {spread:.2f} | {gap} | {each} |")
    return "\n".join(lines) + "\n"


def where(options):
    if options.data_root:
        return "a linear head on a bank, as at the scale frozen of `reproduce`"
    return f"SmallConv, {options.steps} steps of 16/112 images"


def errors(runs, method, way):
    return {r["seed"]: 100 * r["error"] for r in runs if (r["method"], r["way"]) == (method, way)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="digits")
    parser.add_argument("--data-root", help="folder with the dataset, which is then trained on as a bank")
    parser.add_argument("--labels", type=int, default=40)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("results/bench/accuracy"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    key = {"data": options.data, "labels": options.labels, "steps": options.steps}
    stored = options.out.with_suffix(".json")
    runs = json.loads(stored.read_text())["runs"] if stored.exists() else []
    runs = [r for r in runs if {name: r[name] for name in key} == key]
    done = {(r["method"], r["way"], r["seed"]) for r in runs}
    for method in METHODS:
        for seed in range(options.seeds):
            for way in WAYS:
                if (method, way, seed) not in done:
                    runs.append(
                        {**key, "method": method, "way": way, "seed": seed, "error": run(method, way, seed, options)}
                    )
                    write_json(stored, {"runs": runs})
                    write_text(options.out.with_suffix(".md"), page(runs, options))
    print(page(runs, options))


if __name__ == "__main__":
    main()
