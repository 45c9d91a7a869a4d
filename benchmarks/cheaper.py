"""What a calibrator loses if it learns in fewer steps or from fewer rows: the same labels and seeds, on features.

    OMP_NUM_THREADS=1 python -m benchmarks cheaper --features features --sets stl10-224 fashion_mnist-224 \\
        --seeds 0 1 2 --out results/bench/cheaper

appends one line per run to OUT.jsonl, so that a killed study continues, and writes OUT.md. The confidence of each
variant on the test images is compared with that of the first of its family; `other draws` is that one again with
other random draws on the same labels, and tells how far two runs of the same thing are apart.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import vcc_infuse
from vcc_infuse.cli.parser import Parser, integer
from vcc_infuse.errors import UserError
from vcc_infuse.utils.io import write_text

from .features import FeatureSet
from .methods import Run, key_of, read_runs

OTHER_DRAWS = 1000  # added to the seed of the training, not to that of the labels
KEPT = ("error", "ece", "ece_calibrated", "pseudo_label_coverage", "pseudo_label_precision", "seconds_train")


class Variant(NamedTuple):
    """A calibrator with its options; the first of its kind is what the others are compared with."""

    calibrator: str
    options: dict[str, Any]
    other_draws: bool = False


VARIANTS = {
    "Evidence, every=2": Variant("Evidence", {"every": 2}),
    "Evidence, every=2, other draws": Variant("Evidence", {"every": 2}, other_draws=True),
    "Evidence, every=4": Variant("Evidence", {"every": 4}),
    "Evidence, every=8": Variant("Evidence", {"every": 8}),
    "VCC": Variant("VCC", {}),
    "VCC, other draws": Variant("VCC", {}, other_draws=True),
    "VCC, every=4": Variant("VCC", {"every": 4}),
    "VCC, every=8": Variant("VCC", {"every": 8}),
    "VCC, target_fraction=0.25": Variant("VCC", {"target_fraction": 0.25}),
}


def base_of(name: str) -> str:
    """The first variant with the same calibrator."""
    return next(other for other, variant in VARIANTS.items() if variant.calibrator == VARIANTS[name].calibrator)


def measure(features: FeatureSet, name: str, per_class: int, seed: int) -> tuple[Run, np.ndarray]:
    """Train FixMatch with one variant; what is kept of the summary, and the confidence on the test images."""
    variant = VARIANTS[name]
    calibrator = getattr(vcc_infuse, variant.calibrator)(**variant.options)
    result = vcc_infuse.train(
        features.draw(per_class, seed),
        preset="frozen",
        algorithm=vcc_infuse.FixMatch(),
        calibrator=calibrator,
        seed=seed + OTHER_DRAWS * variant.other_draws,
        cross_fit=False,
        progress=False,
        eval_every=600,
    )
    confidence = result.predictor.predict(features.test.astype(np.float32)).calibrated
    return {key: result.summary.get(key) for key in KEPT}, np.asarray(confidence)


def page(runs: Sequence[Run], command: str) -> str:
    """Paired differences to the first variant of the family, over all cells."""
    by_key = {key_of(run): run for run in runs}
    lines = [
        "# Calibrators that learn in fewer steps, or from fewer rows",
        "",
        f"    {command}",
        "",
        "FixMatch on frozen features, 600 steps. Differences to the first line of the same calibrator on the same "
        "labels and seeds, in points: mean ± standard error over the cells. The confidence on test images differs by "
        "the mean of absolute values. Seconds are of training, over those of the first line.",
        "",
        "| | cells | error | ECE of the softmax | ECE, calibrated | confidence differs by | seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in VARIANTS:
        pairs = [(run, by_key.get((*key_of(run)[:3], base_of(name)))) for run in runs if run["row"] == name]
        known = [(run, base) for run, base in pairs if base is not None]
        if known:
            lines.append(_line(name, known))
    return "\n".join(lines) + "\n"


def _line(name: str, pairs: Sequence[tuple[Run, Run]]) -> str:
    base = base_of(name) == name
    cells = []
    for key in ("error", "ece", "ece_calibrated"):
        values = 100 * np.array([run[key] - (0.0 if base else other[key]) for run, other in pairs])
        spread = values.std(ddof=1) / len(values) ** 0.5 if len(values) > 1 else np.nan
        cells.append(f"{values.mean():.2f}" if base else f"{values.mean():+.2f} ± {spread:.2f}")
    moved = 100 * float(np.mean([run["moved"] for run, _ in pairs]))
    slow = float(np.median([run["seconds_train"] / other["seconds_train"] for run, other in pairs]))
    return f"| {name} | {len(pairs)} | {' | '.join(cells)} | {'' if base else f'{moved:.2f}'} | {slow:.2f} |"


def main(argv: Sequence[str]) -> None:
    """Run what is missing, cell by cell, and write the page."""
    parser = Parser("python -m benchmarks cheaper", "Compare calibrators that learn in fewer steps.")
    parser.add_argument("--features", default="features", help="folder of SET.npz, from `benchmarks features`")
    parser.add_argument("--sets", nargs="+", required=True, help="names of the sets")
    parser.add_argument("--per_class", nargs="+", type=integer(), default=[4, 25], help="labels per class (4 25)")
    parser.add_argument("--seeds", nargs="+", type=integer(0), default=[0, 1, 2], help="seeds (0 1 2)")
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), help="variants (all)")
    parser.add_argument("--out", type=Path, default=Path("results/bench/cheaper"), help="writes OUT.jsonl and OUT.md")
    options = parser.read(argv)
    if unknown := [name for name in options.variants if name not in VARIANTS]:
        raise UserError(f"--variants {unknown[0]} is unknown; choose from {', '.join(VARIANTS)}")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    path = options.out.with_suffix(".jsonl")
    done = {key_of(run) for run in read_runs(path)}
    for seed in options.seeds:
        for name in options.sets:
            features = FeatureSet.load(Path(options.features), name)
            for per_class in options.per_class:
                names = [row for row in options.variants if (name, per_class, seed, row) not in done]
                with open(path, "a") as file:
                    for run in cell(features, names, per_class, seed):
                        file.write(json.dumps(run) + "\n")
    write_text(options.out.with_suffix(".md"), page(read_runs(path), f"python -m benchmarks cheaper {' '.join(argv)}"))


def cell(features: FeatureSet, names: Sequence[str], per_class: int, seed: int) -> list[Run]:
    """All variants on the same labels; those to compare with are trained again if they are not among them."""
    needed = dict.fromkeys([*map(base_of, names), *names])
    trained = {name: measure(features, name, per_class, seed) for name in needed}
    return [
        {
            **{"set": features.name, "per_class": per_class, "seed": seed, "row": name, **trained[name][0]},
            "moved": float(np.abs(trained[name][1] - trained[base_of(name)][1]).mean()),
        }
        for name in names
    ]
