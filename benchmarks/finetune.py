"""What do the usual mistakes of fine-tuning cost? FixMatch on a pretrained network, one part of the recipe changed.

VCC_INFUSE_DATA=/folder/with/zips OMP_NUM_THREADS=1 python benchmarks/finetune.py --out results/finetune.md

The folder holds stl10.zip and cifar10.zip (class folders under train/ and test/). Every finished run is stored in a
JSON file beside --out, so that a benchmark that was stopped continues where it was.
"""

import argparse
import json
import os
import time
from pathlib import Path

import numpy as np
import torch

from vcc_infuse import FixMatch, SSLData, Timm, Trainer, load
from vcc_infuse.data.split import balanced
from vcc_infuse.utils.io import write_json

NETWORK = "tf_efficientnet_lite0"
SETS = {"stl10": (40, 96), "cifar10": (250, 64)}  # labels, side of the network's input
RECIPE = dict(
    optimizer="adamw", lr=3e-5, layer_decay=0.75, warmup_steps=10, freeze_bn=True, head_init="probe",
    head_scale=3.0, batch_size=16, unlabeled_ratio=3, precision="fp32", device="cpu", progress=False,
)  # fmt: skip
VARIANTS = {
    "the recipe": {},
    "BatchNorm statistics follow the data (freeze_bn=False)": {"freeze_bn": False},
    "head starts at random (head_init=random, head_lr=3e-3)": {"head_init": "random", "head_lr": 3e-3},
    "ten times the learning rate (lr=3e-4)": {"lr": 3e-4},
    "all layers learn equally fast (layer_decay=1)": {"layer_decay": 1.0},
}
KEPT = ("error", "error_probe", "ece", "pseudo_label_coverage", "pseudo_label_precision", "seconds_train")


# The recipe was not chosen blindly; whoever reads the tables must know.
CHOSEN = """The recipe was chosen after four trials on STL-10, seed 0, judged by the test error of that very split
(probe 27.8 %): FixMatch with lr 3e-4, head_lr 3e-3, head_scale 1, 100 steps 36.8; lr 3e-4, head_scale 3,
60 steps 36.8; lr 3e-5, head_scale 3, 60 steps 31.6 (taken); Supervised, lr 3e-4, head_scale 3, 60 steps
36.0. So the comparison of learning rates on STL-10, seed 0, is not independent evidence; seed 1 and
CIFAR-10 were not looked at. No trial ended below its probe."""


def run(name, variant, seed, steps, root):
    labels, side = SETS[name]
    dataset = load(str(root / f"{name}.zip"))
    data = SSLData(dataset, balanced(dataset.train.y, labels, dataset.classes, seed))
    began, cpu = time.perf_counter(), time.process_time()
    options = {**RECIPE, **VARIANTS[variant], "steps": steps, "eval_every": steps, "seed": seed}
    summary = Trainer(Timm(NETWORK, input_size=side), FixMatch(), **options).fit(data)
    spent = {"seconds": time.perf_counter() - began, "seconds_cpu": time.process_time() - cpu}
    found = {key: summary[key] for key in KEPT if key in summary}
    return {"data": name, "variant": variant, "seed": seed, "steps": steps, **found, **spent}


def table(runs, name):
    """One row per variant; differences are taken to the recipe with the same seed."""
    labels, side = SETS[name]
    own = [r for r in runs if r["data"] == name]
    probes = {r["seed"]: 100 * r["error_probe"] for r in own if "error_probe" in r}
    lines = [
        f"## {name}, {labels} labels, {side} px",
        "",
        f"Linear probe on the frozen features: {np.mean(list(probes.values())):.1f} % "
        f"(by seed: {' '.join(f'{e:.1f}' for e in probes.values())})." if probes else "",
        "",
        "| | error %, mean | by seed | against the recipe | coverage % | precision % | CPU seconds per run | seconds |",
        "|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    recipe = {r["seed"]: r["error"] for r in own if r["variant"] == "the recipe"}
    for variant in VARIANTS:
        found = [r for r in own if r["variant"] == variant]
        if not found:
            continue
        mean = {key: np.mean([r[key] for r in found]) for key in (*KEPT[3:5], "seconds", "seconds_cpu")}
        errors = [100 * r["error"] for r in found]
        paired = [100 * (r["error"] - recipe[r["seed"]]) for r in found if r["seed"] in recipe]
        against = "–" if variant == "the recipe" or not paired else f"{np.mean(paired):+.1f}"
        lines.append(
            f"| {variant} | {np.mean(errors):.1f} | {' '.join(f'{e:.1f}' for e in errors)} | {against} | "
            f"{100 * mean['pseudo_label_coverage']:.0f} | {100 * mean['pseudo_label_precision']:.0f} | "
            f"{mean['seconds_cpu']:.0f} | {mean['seconds']:.0f} |"
        )
    return [*lines, ""]


def page(runs, options):
    """The Markdown page of all finished runs."""
    lines = [
        f"# Fine-tuning {NETWORK}: the recipe, and one part of it changed",
        "",
        f"FixMatch, {options.steps} steps of 16 labeled and 48 unlabeled images, AdamW 3e-5, warm-up "
        f"10 steps, one CPU core shared with other work (seconds are wall time). {len(runs)} of "
        f"{len(SETS) * len(VARIANTS) * options.seeds} runs are finished.",
        "",
        f"    VCC_INFUSE_DATA=… OMP_NUM_THREADS=1 python benchmarks/finetune.py --seeds {options.seeds} "
        f"--steps {options.steps} --out {options.out}",
        "",
        CHOSEN,
        "",
    ]
    return "\n".join(
        lines + [line for name in SETS if any(r["data"] == name for r in runs) for line in table(runs, name)]
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--out", type=Path, default=Path("results/finetune.md"))
    options = parser.parse_args()
    root, stored = Path(os.environ["VCC_INFUSE_DATA"]), options.out.with_suffix(".json")
    torch.set_num_threads(1)
    runs = json.loads(stored.read_text()) if stored.exists() else []
    done = {(r["data"], r["variant"], r["seed"], r["steps"]) for r in runs}
    for name in SETS:
        for seed in range(options.seeds):
            for variant in VARIANTS:
                if (name, variant, seed, options.steps) in done:
                    continue
                runs.append(run(name, variant, seed, options.steps, root))
                write_json(stored, runs)
                print({k: v for k, v in runs[-1].items() if k != "steps"}, flush=True)
                write_page(runs, options)
    write_page(runs, options)


def write_page(runs, options):
    options.out.write_text(page([r for r in runs if r["steps"] == options.steps], options))


if __name__ == "__main__":
    main()
