"""Training on messy pools: other class shares than the labels, images of no class, and wrong labels.

    OMP_NUM_THREADS=1 python -m benchmarks pool_training skew open doubt --features FOLDER --sets stl10-224 --seeds 0 1

appends one line per run to OUT/PART.jsonl, so that a killed study continues, and writes OUT/PART.md. In `skew` the pool
falls geometrically from ten to one over the classes, or the other way, while labels are balanced. In `open` four of ten
classes have no labels (of a hundred, twenty) and make a share of the pool; the known part of the pool stays the same.
In `doubt` a share of the labels is of any other class.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import vcc_infuse
from vcc_infuse import SSLData
from vcc_infuse.cli.parser import Parser, integer
from vcc_infuse.data.split import Split
from vcc_infuse.errors import UserError
from vcc_infuse.utils.io import write_text

from .features import FeatureSet, flip
from .open_set import EnergyFixMatch, InlierFixMatch
from .page import rows

PROG = "python -m benchmarks pool_training"
Run = dict[str, Any]
WEIGHED = {"class_path": "Evidence", "init_args": {"weigh": True, "shares": "predicted"}}
KEYS = ("set", "per_class", "seed", "pool", "row", "steps")
EARLIER = "FlexMatch + Evidence"
KEPT = 0.4  # of the pool, by selectors


def aligned(shares: str) -> dict[str, Any]:
    """AlignedINFUSE with these class shares."""
    return {"class_path": "AlignedINFUSE", "init_args": {"keep": KEPT, "shares": shares}}


def balance(base: str, shares: str) -> dict[str, Any]:
    """Balance of a method, each class's fraction taken of these shares."""
    return {"class_path": "Balance", "init_args": {"base": {"class_path": base}, "shares": shares}}


def evidence(shares: str) -> dict[str, Any]:
    """Evidence that counts against these shares."""
    return {"class_path": "Evidence", "init_args": {"shares": shares}}


BALANCED = balance("FreeMatch", "auto")
ROWS: dict[str, dict[str, Mapping[str, Any]]] = {
    "skew": {
        "FixMatch": {"algorithm": "FixMatch"},
        "SelfTraining, the default": {"algorithm": "SelfTraining"},
        "SelfTraining, handed out": {"algorithm": "SelfTraining", "cross_fit": True},
        "Balance(FreeMatch), predicted shares": {"algorithm": balance("FreeMatch", "predicted")},
        "Balance(FreeMatch), estimated shares": {"algorithm": balance("FreeMatch", "estimated")},
        "Balance(FixMatch), predicted shares": {"algorithm": balance("FixMatch", "predicted")},
        "Balance(FixMatch), estimated shares": {"algorithm": balance("FixMatch", "estimated")},
        "FixMatch + Evidence, predicted shares": {"algorithm": "FixMatch", "calibrator": evidence("predicted")},
        "FixMatch + Evidence, estimated shares": {"algorithm": "FixMatch", "calibrator": evidence("estimated")},
        "FixMatch + VCC": {"algorithm": "FixMatch", "calibrator": "VCC"},
        "FixMatch + RobustVCC": {"algorithm": "FixMatch", "calibrator": "RobustVCC"},
        "FixMatch, AlignedINFUSE, shares of labels": {"algorithm": "FixMatch", "selector": aligned("labels")},
        "FixMatch, AlignedINFUSE, estimated shares": {"algorithm": "FixMatch", "selector": aligned("estimated")},
        "FixMatch, Random": {
            "algorithm": "FixMatch", "selector": {"class_path": "Random", "init_args": {"keep": KEPT}},
        },
    },
    "open": {
        "LinearProbe": {"algorithm": "LinearProbe"},
        "FixMatch": {"algorithm": "FixMatch"},
        "FixMatch, open_set auto": {"algorithm": "FixMatch", "open_set": "auto"},
        "FixMatch + energy": {"algorithm": EnergyFixMatch()},
        "FixMatch, inliers as IOMatch": {"algorithm": InlierFixMatch()},
        "SelfTraining, the default": {"algorithm": "SelfTraining"},
        "SelfTraining, handed out": {"algorithm": "SelfTraining", "cross_fit": True},
        "Balance(FreeMatch)": {"algorithm": BALANCED},
        "Balance(FreeMatch), open_set auto": {"algorithm": BALANCED, "open_set": "auto"},
        "FlexMatch + Evidence, predicted shares": {"algorithm": "FlexMatch", "calibrator": WEIGHED},
        "FlexMatch + Evidence, predicted shares, open_set auto": {
            "algorithm": "FlexMatch", "calibrator": WEIGHED, "open_set": "auto",
        },
    },
    "doubt": {
        "LinearProbe": {"algorithm": "LinearProbe"},
        "LinearProbe, doubt weigh": {"algorithm": "LinearProbe", "doubt": "weigh"},
        "FixMatch": {"algorithm": "FixMatch"},
        "FixMatch, doubt weigh": {"algorithm": "FixMatch", "doubt": "weigh"},
        "SelfTraining, the default": {"algorithm": "SelfTraining"},
        "SelfTraining, the default, doubt weigh": {"algorithm": "SelfTraining", "doubt": "weigh"},
        "FlexMatch + Evidence, predicted shares": {"algorithm": "FlexMatch", "calibrator": WEIGHED},
        "FlexMatch + Evidence, predicted shares, doubt weigh": {
            "algorithm": "FlexMatch", "calibrator": WEIGHED, "doubt": "weigh",
        },
    },
}  # fmt: skip
POOLS: dict[str, dict[str, float]] = {
    "skew": {"equal": 1.0, "10:1": 0.1, "1:10": 10.0},
    "open": {"0 %": 0.0, "10 %": 0.1, "30 %": 0.3, "50 %": 0.5},
    "doubt": {"0 %": 0.0, "5 %": 0.05, "10 %": 0.1, "20 %": 0.2},
}
REFERENCES = {
    "skew": "FixMatch on the same pool (shares are estimated by default from ten labels per class on)",
    "open": "the same row on the pool without foreign images",
    "doubt": "the row above it, which trusts all labels",
}


def skewed(features: FeatureSet, per_class: int, seed: int, ratio: float) -> SSLData:
    """Balanced labels and a pool whose class sizes fall by `ratio` from the first class to the last."""
    data = features.draw(per_class, seed)
    rest = np.setdiff1d(data.split.pool, data.split.labeled)
    y = features.train_y[rest]
    wanted = ratio ** (np.arange(features.classes) / (features.classes - 1))
    sizes = np.floor(wanted / wanted.max() * np.bincount(y).min()).astype(int)
    rng = np.random.default_rng([7, seed])
    rows = [rng.permutation(rest[y == label])[: max(1, size)] for label, size in enumerate(sizes)]
    pool = np.concatenate([data.split.labeled, np.sort(np.concatenate(rows))])
    return SSLData(data.dataset, Split(data.split.labeled, pool))


def opened(features: FeatureSet, per_class: int, seed: int, foreign: float) -> SSLData:
    """Labels of the known classes, and a pool in which this share is of the others."""
    rng = np.random.default_rng([8, seed])
    count = round(features.classes * (0.8 if features.classes >= 100 else 0.6))
    order = rng.permutation(features.classes)
    known = np.sort(order[:count])
    rows = rng.permutation(len(features.train_y))
    y = features.train_y
    labeled = np.concatenate([rows[y[rows] == label][:per_class] for label in known])
    others = rows[~np.isin(y[rows], known)]
    inside = np.setdiff1d(rows[np.isin(y[rows], known)], labeled)
    inside = rng.permutation(inside)[: len(others)]  # so that half of the pool can be foreign
    outside = others[: round(len(inside) * foreign / (1 - foreign))]
    chosen = np.concatenate([labeled, inside, outside])
    shown = np.full(len(chosen), -1)
    shown[: len(labeled)] = np.searchsorted(known, y[labeled])
    tested = np.isin(features.test_y, known)
    test_y = np.searchsorted(known, features.test_y[tested])
    names = [str(label) for label in known]
    return SSLData.from_arrays(
        features.train[chosen], shown, features.test[tested], test_y, slots=features.slots, classes=names
    )


def doubtful(features: FeatureSet, per_class: int, seed: int, rate: float) -> SSLData:
    """Balanced labels of which this share, rounded, is of any other class."""
    data = features.draw(per_class, seed)
    y = features.train_y.copy()
    y[data.split.labeled] = flip(y[data.split.labeled], rate, features.classes, np.random.default_rng([9, seed]))
    wrong = SSLData.from_arrays(features.train, y, features.test, features.test_y, slots=features.slots)
    return SSLData(wrong.dataset, data.split)


MAKE = {"skew": skewed, "open": opened, "doubt": doubtful}


def measure(data: SSLData, row: Mapping[str, Any], seed: int, steps: int = 1) -> float:
    """The test error of the method itself, or of what is handed out if the row is cross-validated."""
    options = {"preset": "frozen", "steps": steps, "eval_every": steps, "seed": seed, "cross_fit": False}
    named: dict[str, Any] = {**options, "calibrator": "Softmax", **row}
    result = vcc_infuse.train(data, progress=False, precision="fp32", **named)
    return float(result.summary["error"])


def page(part: str, runs: Sequence[Run]) -> str:
    """A table per set and number of labels, with its command: a row per method, a column per pool."""
    tables = sorted({(run["set"], run["per_class"]) for run in runs})
    lines = [
        f"# Training on messy pools: {part}",
        "",
        "Test error in per cent, mean over seeds (their number in brackets), of the method itself on frozen features;",
        f"after it the difference from {REFERENCES[part]}, with its standard error.",
    ]
    if any(run["row"].startswith(EARLIER) for run in runs):
        lines += [f"{EARLIER} was the default of an earlier version."]
    for name, per_class in tables:
        cell = [run for run in runs if (run["set"], run["per_class"]) == (name, per_class)]
        lines += ["", f"## {name}, {per_class} labels per class", "", f"    {command(part, cell)}", ""]
        shown = [row for row in ROWS[part] if any(run["row"] == row for run in cell)]
        pools = [pool for pool in POOLS[part] if any(run["pool"] == pool for run in cell)]
        body = [[row, *(_cell(part, cell, row, pool) for pool in pools)] for row in shown]
        lines += rows(["", *pools], body)
    return "\n".join(lines) + "\n"


def command(part: str, runs: Sequence[Run]) -> str:
    """What repeats the runs of a table."""
    given = {
        key: " ".join(map(str, sorted({run[key] for run in runs}))) for key in ("set", "per_class", "seed", "steps")
    }
    options = f"--sets {given['set']} --per_class {given['per_class']} --seeds {given['seed']} --steps {given['steps']}"
    return f"OMP_NUM_THREADS=1 {PROG} {part} --features features {options}"


def _cell(part: str, runs: Sequence[Run], row: str, pool: str) -> str:
    errors = {(run["row"], run["pool"], run["seed"]): 100 * run["error"] for run in runs}
    seeds = [run["seed"] for run in runs if (run["row"], run["pool"]) == (row, pool)]
    if not seeds:
        return "–"
    other = {"skew": ("FixMatch", pool), "open": (row, "0 %"), "doubt": (row.removesuffix(", doubt weigh"), pool)}[part]
    gaps = [errors[row, pool, seed] - errors[(*other, seed)] for seed in seeds if (*other, seed) in errors]
    gap = f", {np.mean(gaps):+.1f}" if gaps and other != (row, pool) else ""
    gap += f" ± {np.std(gaps, ddof=1) / np.sqrt(len(gaps)):.1f}" if gap and len(gaps) > 1 else ""
    return f"{np.mean([errors[row, pool, seed] for seed in seeds]):.1f}{gap} ({len(seeds)})"


def main(argv: Sequence[str]) -> None:
    """Train what is missing and write the tables."""
    parser = Parser(PROG, "Train on pools of other class shares, with images of no class, or with wrong labels.")
    parser.add_argument("parts", nargs="+", metavar="PART", help=f"what to measure: {', '.join(ROWS)}")
    parser.add_argument("--features", type=Path, default=Path("features"), help="folder of `benchmarks features`")
    parser.add_argument("--sets", nargs="+", default=["stl10-224"], help="names of its files (stl10-224)")
    parser.add_argument("--per_class", nargs="+", type=integer(2), default=[4, 25], help="labels per class (4 25)")
    parser.add_argument("--seeds", nargs="+", type=integer(0), default=[0, 1, 2, 3, 4], help="seeds (0 to 4)")
    parser.add_argument("--pools", nargs="+", help="pools of these names only (all)")
    parser.add_argument("--rows", nargs="+", help="rows of these names only (all)")
    parser.add_argument("--steps", type=integer(), default=600, help="steps of a run (600)")
    parser.add_argument("--out", type=Path, default=Path("results/pools"), help="folder of the results (results/pools)")
    options = parser.read(argv)
    for part in options.parts:
        if part not in ROWS:
            raise UserError(f"{part} is not a part of pool_training; choose one of {', '.join(ROWS)}")
        options.out.mkdir(parents=True, exist_ok=True)
        log = options.out / f"{part}.jsonl"
        runs = [json.loads(line) for line in log.read_text().splitlines()] if log.is_file() else []
        done = {tuple(run[key] for key in KEYS) for run in runs}
        for seed, name in ((seed, name) for seed in options.seeds for name in options.sets):
            features = FeatureSet.load(options.features, name)
            for per_class, pool in ((n, pool) for n in options.per_class for pool in options.pools or POOLS[part]):
                data = MAKE[part](features, per_class, seed, POOLS[part][pool])
                for row, parts in ROWS[part].items():
                    run: Run = dict(zip(KEYS, (name, per_class, seed, pool, row, options.steps), strict=True))
                    if tuple(run.values()) in done or row not in (options.rows or ROWS[part]):
                        continue
                    run["error"] = round(measure(data, parts, seed, options.steps), 5)
                    runs.append(run)
                    with log.open("a") as file:
                        file.write(json.dumps(run) + "\n")
        write_text(options.out / f"{part}.md", page(part, runs))
