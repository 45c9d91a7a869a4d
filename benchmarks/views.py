"""How many views of how many pixels pay: error against the minutes that their embedding takes.

    OMP_NUM_THREADS=1 python -m benchmarks views --sets stl10 cifar10 fashion_mnist --out results/views

takes SET-96.npz and SET-224.npz of `benchmarks features` and trains on some of their views. It appends one line per run
to OUT.jsonl, so that a killed study continues, and writes OUT.md.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import vcc_infuse
from vcc_infuse import Balance, FreeMatch, SSLData
from vcc_infuse.cli.parser import Parser, integer
from vcc_infuse.utils.io import read_json, write_text

from .features import SLOTS, FeatureSet
from .methods import read_runs

KEYS = ("set", "per_class", "seed", "size", "weak", "strong")
ENGINE = "ONNX Runtime"
Run = dict[str, Any]


class Views(NamedTuple):
    """Which views are embedded beside the plain one; without a weak one, the plain view is it."""

    size: int
    weak: int
    strong: int

    @property
    def embedded(self) -> int:
        """Views of an image that go through the network."""
        return 1 + self.weak + self.strong


TRIED = (
    *(Views(224, weak, strong) for weak, strong in ((2, 4), (2, 2), (1, 4), (1, 2), (1, 1), (0, 4), (0, 2), (0, 1))),
    *(Views(96, weak, strong) for weak, strong in ((2, 4), (1, 2), (0, 1))),
)


def reduced(features: FeatureSet, views: Views, per_class: int, seed: int) -> SSLData:
    """The set with a few labels shown and only some of its views."""
    places = [0, *(range(1, 1 + views.weak) if views.weak else [0]), *range(3, 3 + views.strong)]
    return replace(features, train=features.train[:, places]).draw(per_class, seed, (max(1, views.weak), views.strong))


def measure(features: FeatureSet, views: Views, per_class: int, seed: int) -> Run:
    """Train the method with steps that is the default where steps are asked for; keep its error and its probe's."""
    data = reduced(features, views, per_class, seed)
    options: dict[str, Any] = {"preset": "frozen", "cross_fit": False, "eval_every": 600, "progress": False}
    summary = vcc_infuse.train(data, algorithm=Balance(FreeMatch()), seed=seed, **options).summary
    return {name: summary[name] for name in ("error", "error_probe")}


def milliseconds(engines: Path) -> dict[int, float]:
    """CPU time of one view by the network's size, augmentation included, from results/engines.json."""
    rows = (read_json(engines) or {})["rows"]
    wanted = [row for row in rows if row["work"].startswith("embedding") and row["engine"] == ENGINE]
    return {row["size"]: row["milliseconds"] for row in wanted if row["image"] == row["size"]}


def page(runs: Sequence[Run], times: dict[int, float], command: str) -> str:
    """Errors over the cells that every choice of views has, by minutes."""
    cells: dict[Views, dict[tuple[Any, ...], float]] = {}
    for run in runs:
        cells.setdefault(Views(run["size"], run["weak"], run["strong"]), {})[_cell(run)] = run["error"]
    common = sorted(set.intersection(*(set(values) for values in cells.values())))
    columns = sorted({cell[:2] for cell in common})
    heads = " | ".join(f"{name}, {per_class} per class" for name, per_class in columns)
    lines = [
        "# Views for the budget",
        "",
        f"    {command}",
        "",
        "Error in per cent of Balance(FreeMatch) (itself, not what is handed out) on features of EfficientNet-Lite0; "
        "the default, SelfTraining, looks at the plain view alone. The errors are "
        f"means of {len(common)} cells that every row has. Views: plain + weak + strong; with 0 weak views the plain "
        "one takes their place. Minutes of CPU to embed 6,000 images, from results/engines.json. Against all views "
        "of the same size: mean difference over cells ± its standard error.",
        "",
        f"| pixels | views | minutes | mean error | against 1 + 2 + 4 | {heads} |",
        f"|{'---|' * (5 + len(columns))}",
    ]
    for views in sorted(cells, key=lambda views: views.embedded * times[views.size]):
        errors = 100 * np.array([cells[views][cell] for cell in common])
        gaps = errors - 100 * np.array([cells[Views(views.size, *SLOTS)][cell] for cell in common])
        noise = gaps.std(ddof=1) / len(gaps) ** 0.5 if len(gaps) > 1 else np.nan
        means = [np.mean([e for e, cell in zip(errors, common, strict=True) if cell[:2] == c]) for c in columns]
        minutes = 6000 * views.embedded * times[views.size] / 60_000
        lines.append(
            f"| {views.size} | 1 + {views.weak} + {views.strong} | {minutes:.1f} | {errors.mean():.2f} "
            f"| {gaps.mean():+.2f} ± {noise:.2f} | {' | '.join(f'{mean:.1f}' for mean in means)} |"
        )
    return "\n".join(lines) + "\n"


def _cell(run: Run) -> tuple[Any, ...]:
    return run["set"], run["per_class"], run["seed"]


def main(argv: Sequence[str]) -> None:
    """Run what is missing and write the page."""
    parser = Parser("python -m benchmarks views", "Compare numbers and sizes of views by the minutes they take.")
    parser.add_argument("--features", type=Path, default=Path("features"), help="folder of `benchmarks features`")
    parser.add_argument("--sets", nargs="+", required=True, help="datasets, without their size")
    parser.add_argument("--per_class", nargs="+", type=integer(), default=[4, 25], help="labels per class (4 25)")
    parser.add_argument("--seeds", nargs="+", type=integer(0), default=[0, 1, 2], help="seeds (0 1 2)")
    parser.add_argument("--sizes", nargs="+", type=integer(), default=[96, 224], help="sizes of the views (96 224)")
    parser.add_argument("--engines", type=Path, default=Path("results/engines.json"), help="times (%(default)s)")
    parser.add_argument("--out", default="results/views", help="writes OUT.jsonl and OUT.md (results/views)")
    options = parser.read(argv)
    log = Path(f"{options.out}.jsonl")
    runs = read_runs(log)
    done = {tuple(run[key] for key in KEYS) for run in runs}
    for seed in options.seeds:
        for name in options.sets:
            for views in (views for views in TRIED if views.size in options.sizes):
                features = FeatureSet.load(options.features, f"{name}-{views.size}")
                for per_class in options.per_class:
                    key = (name, per_class, seed, *views)
                    if key not in done:
                        runs.append(dict(zip(KEYS, key, strict=True)) | measure(features, views, per_class, seed))
                        with log.open("a") as file:
                            file.write(json.dumps(runs[-1]) + "\n")
    text = page(runs, milliseconds(options.engines), f"python -m benchmarks views {' '.join(argv)}")
    write_text(Path(f"{options.out}.md"), text)
