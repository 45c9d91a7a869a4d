"""Compare methods on the same splits, seeds and steps; every finished cell is a file, so a stopped table goes on.

    python benchmarks/compare.py --data digits --labels 20 --seeds 5 --jobs 2 --steps 600 --batch 32 --ratio 5 \
        --rows Supervised FixMatch FixMatch+VCC --out results/vcc_digits_20

A row is `Algorithm`, `Algorithm+Calibrator` or `Algorithm+Calibrator+Selector`, each with arguments in brackets if
need be: `FlexMatch+VCC(match="none")+INFUSE(keep=0.4)`. A row's paired difference is to the row of its algorithm alone.
Writes OUT.md (the table) and OUT.json (all figures).
"""

import argparse
import hashlib
import json
import shlex
import sys
import traceback
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

import vcc_infuse
from vcc_infuse import SSLData, Trainer, load
from vcc_infuse.calibrators import Calibrator
from vcc_infuse.data.split import balanced
from vcc_infuse.files import write_atomic, write_json
from vcc_infuse.run_folder import versions
from vcc_infuse.selectors import Selector

FIGURES = {
    "error": ("error %", 100),
    "ece": ("ECE", 1),
    "ece_calibrated": ("ECE calibrated", 1),
    "pseudo_label_coverage": ("coverage %", 100),
    "pseudo_label_precision": ("precision %", 100),
    "least_coverage": ("least covered class %", 100),
    "seconds": ("seconds", 1),
}


def make(text):
    """An object from its Python expression, with the library's names in reach."""
    return eval(text if text.endswith(")") else f"{text}()", vars(vcc_infuse))


def parts(row):
    """The algorithm, calibrator and selector of a row."""
    algorithm, *plug_ins = [make(part) for part in row.split("+")]
    calibrator = next((p for p in plug_ins if isinstance(p, Calibrator)), None)
    selector = next((p for p in plug_ins if isinstance(p, Selector)), None)
    return algorithm, calibrator, selector


def run(row, seed, options):
    torch.set_num_threads(1)
    dataset = load(options.data, size=options.size)
    classes = len(dataset.classes)
    data = SSLData(dataset, balanced(dataset.train.y, options.labels, classes, seed))
    algorithm, calibrator, selector = parts(row)
    trainer = Trainer(
        make(options.model), algorithm, calibrator, selector, steps=options.steps, epochs=options.epochs,
        eval_every=options.epochs, batch=options.batch, ratio=options.ratio, lr=options.lr, seed=seed, progress=False,
    )  # fmt: skip
    summary = trainer.fit(data)
    covered = [c for c in summary.get("pseudo_label_coverage_per_class") or [] if c == c]
    summary["least_coverage"] = min(covered) if covered else None
    summary["seconds"] = summary["seconds_train"] + summary["seconds_select"]
    return summary


def cell(row, seed, options):
    """Run a cell unless it is there already; a failure is reported and does not stop the others."""
    path = place(row, seed, options)
    if path.exists():
        return
    try:
        summary = run(row, seed, options)
    except Exception:
        print(f"failed: {row}, seed {seed}\n{traceback.format_exc()}", file=sys.stderr, flush=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {"row": row, "seed": seed, **summary})


def place(row, seed, options):
    names = ("data", "size", "labels", "model", "steps", "epochs", "batch", "ratio", "lr")
    key = json.dumps([row, seed, [str(getattr(options, name)) for name in names]])
    return Path(options.cells) / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"


def column(cells, name, unit):
    values = [unit * c[name] for c in cells if c.get(name) is not None]
    if not values:
        return "–"
    return f"{np.mean(values):.{2 if unit > 1 else 3}f} ± {np.std(values, ddof=1) if len(values) > 1 else 0:.2g}"


def paired(cells, base, name="error", unit=100):
    """Mean ± std of the difference to the base on the same seeds, and how many seeds are better, equal and worse."""
    pairs = [(c[name], base[c["seed"]][name]) for c in cells if c["seed"] in base]
    gaps = unit * np.array([a - b for a, b in pairs])
    if not len(gaps):
        return "–"
    spread = gaps.std(ddof=1) if len(gaps) > 1 else 0
    return f"{gaps.mean():+.2f} ± {spread:.2g} ({(gaps < 0).sum()}/{(gaps == 0).sum()}/{(gaps > 0).sum()})"


def table(results, options, command):
    head = [label for label, _ in FIGURES.values()]
    lines = [
        f"{Path(options.data).stem}, {options.labels} labels, {options.model}, {options.steps} steps of "
        f"{options.batch} labelled and {options.batch * options.ratio} unlabelled, {options.seeds} seeds: mean ± std.",
        "Differences are to the same method without plug-in on the same seeds (seeds better/equal/worse).",
        "",
        f"    {command}",
        "",
        "| method | " + " | ".join(head) + " | error difference | errors by seed |",
        "|---" * (len(head) + 3) + "|",
    ]
    for row, cells in results.items():
        base = {c["seed"]: c for c in results.get(row.split("+")[0], [])}
        figures = [column(cells, name, unit) for name, (_, unit) in FIGURES.items()]
        gap = paired(cells, base) if "+" in row else "–"
        each = " ".join(f"{100 * c['error']:.1f}" for c in cells)
        lines.append(f"| {row} | " + " | ".join(figures) + f" | {gap} | {each} |")
    found = versions()
    lines += ["", f"torch {found['torch']}, vcc-infuse {found['vcc-infuse']}, Python {found['python']}."]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--size", type=int)
    parser.add_argument("--labels", type=int, default=40)
    parser.add_argument("--rows", nargs="+", required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--model", default="SmallConv")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--ratio", type=int, default=5)
    parser.add_argument("--lr", type=float, default=0.03)
    parser.add_argument("--cells", default="runs/cells", help="where finished cells are kept")
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    for row in options.rows:
        parts(row)  # a mistake in a row should cost nothing
    jobs = [(row, seed) for seed in range(options.seeds) for row in options.rows]
    # Spawned, not forked: torch's threads do not survive a fork.
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as workers:
        tasks = [workers.submit(cell, row, seed, options) for row, seed in jobs]
        for task in tqdm(as_completed(tasks), total=len(jobs), disable=not sys.stderr.isatty()):
            task.result()
    results = {}
    for row in options.rows:
        paths = [place(row, seed, options) for seed in range(options.seeds)]
        results[row] = [json.loads(path.read_text()) for path in paths if path.exists()]
    command = shlex.join(["python", "benchmarks/compare.py", *sys.argv[1:]])
    out = Path(options.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    text = table(results, options, command)
    write_atomic(out.with_suffix(".md"), lambda temporary: temporary.write_text(text, encoding="utf-8"))
    keep = ("row", "seed", "error", "ece", "mce", "ace", "nll", "brier", "ece_calibrated", "mce_calibrated",
            "ace_calibrated", "pseudo_label_coverage", "pseudo_label_precision", "pseudo_label_coverage_per_class",
            "pseudo_label_precision_per_class", "error_per_class", "seconds_train", "seconds_select",
            "steps")  # fmt: skip
    cells = [{name: c.get(name) for name in keep} for row in results.values() for c in row]
    write_json(out.with_suffix(".json"), {"command": command, "versions": versions(), "cells": cells})
    print(text)


if __name__ == "__main__":
    main()
