"""Is a cross-validated run ever behind its probe, and is its confidence calibrated? Methods on features of images.

    OMP_NUM_THREADS=1 python -m benchmarks hand_out --sets svhn-224 cifar100-224 --out results/hand_out

appends one line per run to FOLDER/runs.jsonl, so that a killed study continues, and writes FOLDER/hand_out.md. In the
pool "drawn" one label of each class is shown and the others are drawn at random, whatever their class. In the
pool "skewed" the most frequent class is ten times as frequent as the rarest, while the labels stay balanced; with
"natural" the labels are as uneven as the pool, and with "reversed" too, but the class with most labels is the rarest of
the pool. The test set is even.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import vcc_infuse
from vcc_infuse import SSLData
from vcc_infuse.cli.parser import Parser, integer
from vcc_infuse.data.split import Split
from vcc_infuse.errors import UserError
from vcc_infuse.utils.io import write_text

from .features import FeatureSet
from .methods import DEFAULTS, PROBE, parts, rows

METHODS = (DEFAULTS, PROBE)
POOLS = ("same", "drawn", "skewed", "natural", "reversed")
SKEW = 10.0
KEPT = ("error", "error_method", "error_probe", "ece", "ece_calibrated")
Run = dict[str, Any]


def main(argv: Sequence[str]) -> None:
    """Train what is missing and write the table."""
    parser = Parser("python -m benchmarks hand_out", "Compare what is handed out with the method and its probe.")
    parser.add_argument("--features", type=Path, default=Path("features"), help="folder of `benchmarks features`")
    parser.add_argument("--sets", nargs="+", required=True, help="names of its files")
    parser.add_argument("--labels", nargs="+", type=integer(2), default=[4, 25], help="labels per class (4 25)")
    parser.add_argument("--seeds", nargs="+", type=integer(0), default=[5, 6, 7, 8, 9], help="seeds (5 6 7 8 9)")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), help="rows of `methods` (defaults LinearProbe)")
    parser.add_argument("--pools", nargs="+", default=list(POOLS), help="class shares of the pool (all)")
    parser.add_argument("--out", type=Path, default=Path("results/hand_out"), help="folder of the results")
    options = parser.read(argv)
    if unknown := [name for name in options.methods if name not in rows()]:
        raise UserError(f"--methods {unknown[0]} is unknown; choose from {', '.join(rows())}")
    if unknown := [name for name in options.pools if name not in POOLS]:
        raise UserError(f"--pools {unknown[0]} is unknown; choose from {', '.join(POOLS)}")
    options.out.mkdir(parents=True, exist_ok=True)
    log = options.out / "runs.jsonl"
    runs = [json.loads(line) for line in log.read_text().splitlines()] if log.is_file() else []
    done = {key_of(run) for run in runs}
    for seed in options.seeds:
        for name in options.sets:
            features = FeatureSet.load(options.features, name)
            for labels in options.labels:
                for pool in options.pools:
                    for method in options.methods:
                        key = (name, labels, pool, method, seed)
                        if key not in done:
                            runs.append(measure(features, *key))
                            with log.open("a") as file:
                                file.write(json.dumps(runs[-1]) + "\n")
                            print(runs[-1], flush=True)
    write_text(options.out / "hand_out.md", page(runs, f"python -m benchmarks hand_out {' '.join(argv)}"))


def key_of(run: Run) -> tuple[Any, ...]:
    """What tells runs apart."""
    return tuple(run[name] for name in ("set", "labels", "pool", "method", "seed"))


def measure(features: FeatureSet, name: str, labels: int, pool: str, method: str, seed: int) -> Run:
    """One run with its cross-validation."""
    algorithm, calibrator = parts(method)
    result = vcc_infuse.train(
        with_pool(features.draw(labels, seed), pool, seed),
        preset="frozen",
        algorithm=algorithm,
        calibrator=calibrator,
        cross_fit=True,
        seed=seed,
        eval_every=600,
        progress=False,
    )
    figures = {key: round(result.summary[key], 4) for key in KEPT}
    weight = round(result.summary["cross_validated"]["weight"], 3)
    return {"set": name, "labels": labels, "pool": pool, "method": method, "seed": seed, **figures, "weight": weight}


def with_pool(data: SSLData, pool: str, seed: int) -> SSLData:
    """The data with fewer images of some classes in the pool, in an order drawn at random; the first class keeps all.

    The last one keeps a tenth. Labels are left out alike, or in the reversed order.
    """
    if pool == "same":
        return data
    rng = np.random.default_rng([7, seed])
    y = data.dataset.train.y
    classes = len(data.dataset.classes)
    if pool == "drawn":
        return SSLData(data.dataset, Split(_drawn(data.split.labeled, data.split.pool, y, rng), data.split.pool))
    shares = SKEW ** -(np.arange(classes) / (classes - 1))
    order = rng.permutation(classes)
    labeled = data.split.labeled
    rest = _thinned(np.setdiff1d(data.split.pool, labeled), y, dict(zip(order, shares, strict=True)), rng)
    if pool != "skewed":
        first = order[::-1] if pool == "reversed" else order
        labeled = _thinned(labeled, y, dict(zip(first, shares, strict=True)), rng)
    return SSLData(data.dataset, Split(labeled, np.concatenate([labeled, rest])))


def _drawn(labeled: np.ndarray, pool: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """As many rows as are labeled, one of each class and the others at random, ascending."""
    order = rng.permutation(pool)
    first = order[np.unique(y[order], return_index=True)[1]]
    rest = order[~np.isin(order, first)]
    return np.sort(np.concatenate([first, rest[: len(labeled) - len(first)]]))


def _thinned(rows: np.ndarray, y: np.ndarray, shares: dict[int, float], rng: np.random.Generator) -> np.ndarray:
    """A share of the rows of every class, at least one."""
    kept = []
    for label, share in shares.items():
        drawn = rng.permutation(rows[y[rows] == label])
        kept.append(drawn[: max(1, round(len(drawn) * share))])
    return np.sort(np.concatenate(kept))


def page(runs: Sequence[Run], command: str) -> str:
    """Means per set, labels, pool and method, and in how many runs the promises are kept."""
    lines = [
        "# What a cross-validated run hands out",
        "",
        f"    {command}",
        "",
        "Rules and priors of the hand-out were chosen on STL-10 and CIFAR-10, by their test errors, with seeds 0 to 2: "
        "only other sets count here. Pools: `drawn`, one label of each class and the others at random; `skewed`, the "
        "most frequent class is ten times as frequent as the rarest and the labels are balanced; `natural`, the labels "
        "are as uneven; `reversed`, they are, the other way round. The test set is even.",
        "",
        "Test error in per cent and ECE, means over seeds; `weight` is that of the method in the mix handed out, ECE "
        "that of the mix's own softmax.",
        "",
        "| set | per class | pool | method | probe | method itself | handed out | weight | ECE | calibrated | runs |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    groups: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        groups.setdefault(key_of(run)[:4], []).append(run)
    for key, group in sorted(groups.items()):
        mean = {name: float(np.mean([run[name] for run in group])) for name in (*KEPT, "weight")}
        errors = (f"{100 * mean[name]:.1f}" for name in ("error_probe", "error_method", "error"))
        rest = (f"{mean['weight']:.2f}", f"{mean['ece']:.3f}", f"{mean['ece_calibrated']:.3f}", str(len(group)))
        lines.append(f"| {' | '.join([*map(str, key), *errors, *rest])} |")
    for method in dict.fromkeys(run["method"] for run in runs):
        lines += ["", *promises(method, [run for run in runs if run["method"] == method])]
    return "\n".join([*lines, ""])


def promises(method: str, runs: Sequence[Run]) -> list[str]:
    """Shares of runs that are behind their probe and that are calibrated, pool by pool."""
    lines = [f"{method}, {len(runs)} runs:", ""]
    for pool in dict.fromkeys(run["pool"] for run in runs):
        some = [run for run in runs if run["pool"] == pool]
        for name, error in (("the method itself", "error_method"), ("what is handed out", "error")):
            gains = 100 * np.array([run["error_probe"] - run[error] for run in some])
            behind = f"above its probe by more than a point in {(gains < -1).sum()} of {len(some)} runs"
            noise = gains.std(ddof=1) / len(gains) ** 0.5 if len(gains) > 1 else np.nan
            lines.append(f"- pool {pool}, {name}: {behind}; mean gain over the probe {gains.mean():.2f} ± {noise:.2f}.")
        lines.append(f"- pool {pool}, {calibration(some)}.")
    return lines


def calibration(runs: Sequence[Run]) -> str:
    """In how many runs the calibrated confidence is as good as wanted."""
    before, after = (np.array([run[key] for run in runs]) for key in ("ece", "ece_calibrated"))
    small = (after <= np.maximum(0.05, before / 2)).sum()
    worse = f"above the softmax's by more than .02 in {(after > before + 0.02).sum()}, at most by"
    return (
        f"calibrated ECE at most max(.05, half the softmax's) in {small} of {len(runs)} runs; {worse} "
        f"{(after - before).max():.3f}; mean {before.mean():.3f} → {after.mean():.3f}"
    )
