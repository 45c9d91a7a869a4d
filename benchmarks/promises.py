"""Are the promises of Evidence kept where nobody chose anything: wrong labels as shares of the pool and of the trusted.

    OMP_NUM_THREADS=1 python -m benchmarks promises --sets cifar100-224 svhn-224 mnist-224 --out results/promises

appends one line per run to OUT.jsonl, so that a killed study continues, and writes OUT.md.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import vcc_infuse
from vcc_infuse import Evidence, FixMatch
from vcc_infuse.cli.parser import Parser, integer
from vcc_infuse.utils.io import write_text

from .features import FeatureSet
from .methods import read_runs

PROMISES = {"max_pool_error": 0.05, "max_trusted_error": 0.1}
CALIBRATORS = {
    "max_pool_error": partial(Evidence, max_pool_error=PROMISES["max_pool_error"]),
    "max_trusted_error": partial(Evidence, max_trusted_error=PROMISES["max_trusted_error"]),
}
MEASURED = {"max_pool_error": "trusted_and_wrong", "max_trusted_error": "trusted_error"}
KEYS = ("set", "per_class", "seed", "promise")
Run = dict[str, Any]


def measure(features: FeatureSet, per_class: int, seed: int, promise: str) -> Run:
    """One run; a share of what was never trusted is 0."""
    result = vcc_infuse.train(
        features.draw(per_class, seed),
        preset="frozen",
        algorithm=FixMatch(),
        calibrator=CALIBRATORS[promise](),
        seed=seed,
        cross_fit=False,
        eval_every=600,
        progress=False,
    )
    summary = result.summary
    shares = {"share": summary.get(MEASURED[promise], 0.0), "trusted": summary["pseudo_label_coverage"]}
    return shares | {name: summary[name] for name in ("error", "error_probe")}


def page(runs: Sequence[Run], command: str) -> str:
    """Per cell what was promised and measured, and the mean of all runs, which is what is promised."""
    lines = [
        "# Promises of Evidence",
        "",
        f"    {command}",
        "",
        "FixMatch with Evidence on frozen features. `max_pool_error` promises wrong trusted labels as a share of the "
        "pool, `max_trusted_error` as a share of the trusted, both on average over runs, a run that trusts nothing "
        "counting as 0. Per cent, over the whole run; trusted: at its end.",
        "",
        "| promise | set | labels per class | promised | measured, mean | largest | trusted | error | probe | runs |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for promise, bound in PROMISES.items():
        for name, per_class in sorted({(run["set"], run["per_class"]) for run in runs}):
            some = [run for run in runs if (run["promise"], run["set"], run["per_class"]) == (promise, name, per_class)]
            if some:
                mean = {key: 100 * np.mean([run[key] for run in some]) for key in ("trusted", "error", "error_probe")}
                share = 100 * np.array([run["share"] for run in some])
                rest = " | ".join(f"{value:.1f}" for value in (share.mean(), share.max(), *mean.values()))
                lines.append(f"| `{promise}` | {name} | {per_class} | {100 * bound:.0f} | {rest} | {len(some)} |")
    for promise, bound in PROMISES.items():
        share = np.array([run["share"] for run in runs if run["promise"] == promise])
        if len(share):
            error = 100 * share.std(ddof=1) / len(share) ** 0.5 if len(share) > 1 else np.nan
            over = f"above {100 * bound:.0f} % in {(share > bound).sum()} of {len(share)} runs"
            lines += ["", f"`{promise}`: mean of all runs {100 * share.mean():.2f} ± {error:.2f} %; {over}."]
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str]) -> None:
    """Run what is missing and write the page."""
    parser = Parser("python -m benchmarks promises", "Measure the shares of wrong labels that Evidence promises.")
    parser.add_argument("--features", type=Path, default=Path("features"), help="folder of `benchmarks features`")
    parser.add_argument("--sets", nargs="+", required=True, help="names of its files")
    parser.add_argument("--per_class", nargs="+", type=integer(), default=[4, 25], help="labels per class (4 25)")
    parser.add_argument("--seeds", nargs="+", type=integer(0), default=[5, 6, 7, 8, 9], help="seeds (5 6 7 8 9)")
    parser.add_argument("--out", default="results/promises", help="writes OUT.jsonl and OUT.md (results/promises)")
    options = parser.read(argv)
    log = Path(f"{options.out}.jsonl")
    runs = read_runs(log)
    done = {tuple(run[key] for key in KEYS) for run in runs}
    for seed in options.seeds:
        for name in options.sets:
            features = FeatureSet.load(options.features, name)
            for per_class in options.per_class:
                for promise in PROMISES:
                    key = (name, per_class, seed, promise)
                    if key not in done:
                        runs.append(dict(zip(KEYS, key, strict=True)) | measure(features, per_class, seed, promise))
                        with log.open("a") as file:
                            file.write(json.dumps(runs[-1]) + "\n")
    write_text(Path(f"{options.out}.md"), page(runs, f"python -m benchmarks promises {' '.join(argv)}"))
