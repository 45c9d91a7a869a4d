"""Which method a user should get who asks for none: methods and calibrators on the same features, labels and seeds.

    OMP_NUM_THREADS=1 python -m benchmarks methods --features features --sets cifar10-224 stl10-224 --seeds 0 1 2 \\
        --out results/methods

appends one line per run to FOLDER/runs.jsonl, so that a killed study continues, and writes FOLDER/methods.md.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import rankdata

import vcc_infuse
from vcc_infuse import Algorithm, Balance, Calibrator
from vcc_infuse.cli.parser import Parser, integer
from vcc_infuse.errors import UserError
from vcc_infuse.utils.io import write_text

from .features import FeatureSet

BASES = ("FixMatch", "FlexMatch", "FreeMatch", "SimMatch", "SoftMatch")
ADAPTIVE = ("FlexMatch", "FreeMatch", "SoftMatch")
"""Methods that trust nearly every label on features, so that Evidence acts by weighing."""
PROBE = "LinearProbe"
DEFAULTS = "defaults"
"""The row of a user who names nothing: what the run hands out after it was cross-validated on its labels."""
KEPT = (
    "error", "ece", "ece_calibrated", "nll", "pseudo_label_coverage", "pseudo_label_precision", "seconds_train",
    "error_probe", "error_method", "handed_out",
)  # fmt: skip
Run = dict[str, Any]


def rows() -> dict[str, tuple[str, str, str | None]]:
    """Every row: its name, and wrapper, base and calibrator."""
    table: dict[str, tuple[str, str, str | None]] = {PROBE: ("", PROBE, None), DEFAULTS: ("", "", None)}
    table["SelfTraining"] = ("", "SelfTraining", None)
    for base in BASES:
        table[base] = ("", base, None)
        table[f"Balance({base})"] = ("Balance", base, None)
        table[f"{base} + Evidence"] = ("", base, "Evidence")
        table[f"{base} + RobustVCC"] = ("", base, "RobustVCC")
    return table


def parts(name: str) -> tuple[Algorithm | None, Calibrator | None]:
    """The objects of a row; none for the defaults."""
    wrapper, base, calibrator = rows()[name]
    if not base:
        return None, None
    algorithm = getattr(vcc_infuse, base)()
    weigh = {"weigh": True} if calibrator == "Evidence" and base in ADAPTIVE else {}
    made = getattr(vcc_infuse, calibrator)(**weigh) if calibrator else None
    return (Balance(algorithm) if wrapper else algorithm), made


def measure(features: FeatureSet, name: str, per_class: int, seed: int, options: Mapping[str, Any]) -> Run:
    """Train one row and keep what is compared."""
    algorithm, calibrator = parts(name)
    result = vcc_infuse.train(
        features.draw(per_class, seed),
        preset="frozen",
        algorithm=algorithm,
        calibrator=calibrator,
        seed=seed,
        cross_fit="auto" if name == DEFAULTS else False,
        progress=False,
        **options,
    )
    return {key: result.summary.get(key) for key in KEPT}


def read_runs(path: Path) -> list[Run]:
    """The runs that are finished."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def key_of(run: Run) -> tuple[Any, ...]:
    """What makes a run."""
    return run["set"], run["per_class"], run["seed"], run["row"]


def mean_ranks(runs: Sequence[Run]) -> dict[str, float]:
    """The mean rank of each row's error among the rows that were run in every cell; 1 is the best."""
    cells: dict[tuple[Any, ...], dict[str, float]] = defaultdict(dict)
    for run in runs:
        cells[key_of(run)[:3]][run["row"]] = run["error"]
    names = sorted(name for name in rows() if all(name in cell for cell in cells.values()))
    if not names:
        return {}
    table = np.array([[cell[name] for name in names] for cell in cells.values()])
    return dict(zip(names, rankdata(table, axis=1).mean(0).tolist(), strict=True))


def page(runs: Sequence[Run], command: str) -> str:
    """The runs as a table: a row per method, a column per set and label count."""
    columns = sorted({key_of(run)[:2] for run in runs})
    ranks = mean_ranks(runs)
    order = sorted(rows(), key=lambda name: ranks.get(name, np.inf))
    heads = [f"{name}, {per_class} per class" for name, per_class in columns]
    lines = [
        "# Methods on frozen features",
        "",
        f"    {command}",
        "",
        "Error in per cent, mean ± standard deviation over seeds; in brackets the ECE of the softmax → of the "
        "calibrated confidence, in per cent. Seconds are of training alone, relative to FixMatch on the same cells; "
        "cross-validation, which `defaults` adds, is not among them.",
        "",
        f"| | rank | seconds | {' | '.join(heads)} |",
        f"|{'---|' * (len(heads) + 3)}",
    ]
    slow = _seconds(runs)
    for name in order:
        cells = [[run for run in runs if key_of(run) == (*column, run["seed"], name)] for column in columns]
        if any(cells):
            texts = " | ".join(_cell(cell) for cell in cells)
            lines.append(f"| {name} | {_rank(ranks.get(name))} | {slow.get(name, np.nan):.2f} | {texts} |")
    return "\n".join(lines) + "\n"


def _rank(rank: float | None) -> str:
    return "–" if rank is None else f"{rank:.1f}"


def _cell(runs: Sequence[Run]) -> str:
    if not runs:
        return "–"
    error, ece, calibrated = (np.array([run[key] for run in runs]) * 100 for key in ("error", "ece", "ece_calibrated"))
    return f"{error.mean():.1f} ± {error.std():.1f} ({ece.mean():.1f} → {calibrated.mean():.1f})"


def _seconds(runs: Sequence[Run]) -> dict[str, float]:
    base = {key_of(run)[:3]: run["seconds_train"] for run in runs if run["row"] == "FixMatch"}
    ratios: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        if key_of(run)[:3] in base:
            ratios[run["row"]].append(run["seconds_train"] / base[key_of(run)[:3]])
    return {name: float(np.median(values)) for name, values in ratios.items()}


def main(argv: Sequence[str]) -> None:
    """Run what is missing, cell by cell, and write the page."""
    parser = Parser("python -m benchmarks methods", "Compare methods and calibrators on arrays of features.")
    parser.add_argument("--features", default="features", help="folder of SET.npz, from `benchmarks features`")
    parser.add_argument("--sets", nargs="+", required=True, help="names of the sets")
    parser.add_argument("--per_class", nargs="+", type=integer(), default=[4, 25], help="labels per class (4 25)")
    parser.add_argument("--seeds", nargs="+", type=integer(0), default=[0, 1, 2], help="seeds (0 1 2)")
    parser.add_argument("--rows", nargs="+", default=list(rows()), help="rows (all)")
    parser.add_argument("--steps", type=integer(), help="steps of a run; the preset's if not given")
    parser.add_argument("--out", default="results/methods", help="folder to write to (results/methods)")
    options = parser.read(argv)
    if unknown := [name for name in options.rows if name not in rows()]:
        raise UserError(f"--rows {unknown[0]} is unknown; choose from {', '.join(rows())}")
    folder = Path(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "runs.jsonl"
    done = {key_of(run) for run in read_runs(path)}
    length = {"steps": options.steps, "eval_every": options.steps} if options.steps else {"eval_every": 600}
    for seed in options.seeds:
        for name in options.sets:
            features = FeatureSet.load(Path(options.features), name)
            for per_class in options.per_class:
                for row in options.rows:
                    if (name, per_class, seed, row) in done:
                        continue
                    figures = measure(features, row, per_class, seed, length)
                    run = {"set": name, "per_class": per_class, "seed": seed, "row": row, **figures}
                    with open(path, "a") as file:
                        file.write(json.dumps(run) + "\n")
    write_text(folder / "methods.md", page(read_runs(path), f"python -m benchmarks methods {' '.join(argv)}"))
