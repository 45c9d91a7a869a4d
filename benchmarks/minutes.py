"""Error against minutes: ten lines of scikit-learn, and this library with few pixels and with its defaults.

    OMP_NUM_THREADS=1 python -m benchmarks minutes --data stl10.zip --labels 40 --seeds 5 --out results/minutes

Every way starts with an empty cache. Embedding is timed once and counted in full for each seed; minutes are CPU time of
this process, because a shared machine has no other clock worth comparing.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

import vcc_infuse
from vcc_infuse import SSLData, Timm, embed_data
from vcc_infuse.augment.views import ImageViews
from vcc_infuse.bank.embed import make_encoder
from vcc_infuse.bank.encoder import ForwardOptions, features
from vcc_infuse.cli.parser import Parser, integer
from vcc_infuse.data.ssl_data import load_ssl
from vcc_infuse.utils.io import write_atomic, write_json, write_text

NETWORK = "tf_efficientnet_lite0"
SMALL = 96
Seeds = Sequence[SSLData]
Way = Callable[[Seeds], list[float]]


def scikit_learn(size: int | None) -> Way:
    """Plain features in PyTorch, then a logistic regression."""

    def errors(draws: Seeds) -> list[float]:
        dataset = draws[0].dataset
        encoder = make_encoder(Timm(NETWORK, input_size=size), dataset.shape)[0].eval()
        expects = encoder.preprocessing() or dataset
        views = ImageViews(expects.mean, expects.std)
        test = dataset.test
        assert test is not None

        def embedded(x: np.ndarray) -> np.ndarray:
            parts = [views.plain(torch.from_numpy(np.array(x[start : start + 64]))) for start in range(0, len(x), 64)]
            return torch.cat([features(encoder, part, ForwardOptions(16)) for part in parts]).float().numpy()

        scaler = StandardScaler().fit(train := embedded(dataset.train.x))
        rows, tested = scaler.transform(train), scaler.transform(embedded(test.x))
        models = (LogisticRegression(max_iter=1000).fit(rows[d.split.labeled], d.labeled_y) for d in draws)
        return [float((model.predict(tested) != test.y).mean()) for model in models]

    return errors


def library(cache: str, size: int | None, **options: Any) -> Way:
    """`vcc_infuse.train` on a bank; what is not given is the default."""

    def errors(draws: Seeds) -> list[float]:
        engine = options.get("engine", "auto")
        bank = embed_data(draws[0], Timm(NETWORK, input_size=size), cache=cache, engine=engine, progress=False).dataset
        runs = []
        for seed, draw in enumerate(draws):
            data = replace(draw, dataset=bank)
            runs.append(vcc_infuse.train(data, preset="frozen", seed=seed, progress=False, **options).summary["error"])
        return runs

    return errors


def measure(draws: Seeds, cache: str) -> list[dict[str, Any]]:
    """Every way, with its errors and its CPU minutes per seed."""
    before = {"algorithm": "FixMatch", "cross_fit": False, "engine": "torch"}
    ways = {
        f"scikit-learn, {SMALL} px": scikit_learn(SMALL),
        "scikit-learn, native size": scikit_learn(None),
        f"FixMatch, {SMALL} px, PyTorch": library(f"{cache}/before", SMALL, **before),
        "defaults, native size": library(f"{cache}/now", None),
    }
    rows = []
    for name, way in ways.items():
        began = time.process_time()
        way(draws[:1])
        first = time.process_time() - began
        began = time.process_time()
        errors = way(draws)  # scikit-learn embeds again; the library finds its bank
        spent = time.process_time() - began
        training = 0.0 if name.startswith("scikit") else spent / len(draws)
        rows.append({"way": name, "errors": errors, "minutes": first / 60, "minutes_training": training / 60})
        print(f"{name}: {100 * np.mean(errors):.1f} %, {first / 60:.1f} minutes", flush=True)
    return rows


def page(rows: Sequence[dict[str, Any]], command: str) -> str:
    """The Markdown page."""
    lines = [
        "# Error against minutes",
        "",
        f"    {command}",
        "",
        "From images to a model with an empty cache, one seed; CPU minutes of one process. Error: mean ± standard "
        "deviation over seeds, which are draws of labels.",
        "",
        "| | minutes | of them training | error |",
        "|---|---|---|---|",
    ]
    for row in rows:
        errors = 100 * np.array(row["errors"])
        times = f"{row['minutes']:.2f} | {row['minutes_training']:.2f}"
        lines.append(f"| {row['way']} | {times} | {errors.mean():.1f} ± {errors.std():.1f} % |")
    return "\n".join(lines) + "\n"


def draw(rows: Sequence[dict[str, Any]], title: str, path: Path) -> None:
    """The figure."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.6), layout="tight")
    axes = figure.subplots()
    for row in rows:
        errors = 100 * np.array(row["errors"])
        name = f"{row['way']}: {errors.mean():.1f} %"
        axes.errorbar(row["minutes"], errors.mean(), errors.std(), fmt="o", markersize=8, capsize=4, label=name)
    axes.legend(frameon=False)
    axes.set(xlabel="CPU minutes from images to a model", ylabel="test error in percent", title=title, ylim=(0, None))
    axes.set_xlim(0, 1.1 * max(row["minutes"] for row in rows))
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150, format="png")


def main(argv: Sequence[str]) -> None:
    """Measure, and write the page and the figure."""
    parser = Parser("python -m benchmarks minutes", "Error against minutes for four ways to a classifier.")
    parser.add_argument("--data", required=True, help="a zip or folder of labeled images with a test set")
    parser.add_argument("--labels", type=integer(2), default=40, help="labels that are shown (40)")
    parser.add_argument("--seeds", type=integer(), default=5, help="draws of the labels (5)")
    parser.add_argument("--out", default="results/minutes", help="writes OUT.json, OUT.md and OUT.png")
    options = parser.read(argv)
    draws = [load_ssl(options.data, labels=options.labels, seed=seed, progress=False) for seed in range(options.seeds)]
    with tempfile.TemporaryDirectory() as cache:
        rows = measure(draws, cache)
    title = f"{Path(options.data).stem}, {options.labels} labels"
    command = f"OMP_NUM_THREADS=1 python -m benchmarks minutes {' '.join(argv)}"
    write_json(Path(f"{options.out}.json"), {"command": command, "rows": rows})
    write_text(Path(f"{options.out}.md"), page(rows, command))
    write_atomic(Path(f"{options.out}.png"), lambda path: draw(rows, title, path))
