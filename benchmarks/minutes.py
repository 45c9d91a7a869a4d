"""Error against minutes: ten lines of scikit-learn, and this library with few pixels, one network, and its defaults.

    OMP_NUM_THREADS=1 python -m benchmarks minutes --data stl10.zip --labels 40 --seeds 5 --out results/minutes

Every run starts with an empty cache and pays for its own embedding, choice of a network and export included. Minutes
are CPU time of this process, because a shared machine has no other clock worth comparing. Finished runs are kept in
OUT.json, so that a study that was stopped continues.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

import vcc_infuse
from vcc_infuse import SSLData, Timm
from vcc_infuse.augment.views import ImageViews
from vcc_infuse.bank.embed import make_encoder
from vcc_infuse.bank.encoder import ForwardOptions, features
from vcc_infuse.cli.parser import Parser, integer
from vcc_infuse.data.ssl_data import load_ssl
from vcc_infuse.utils.io import read_json, write_atomic, write_json, write_text

NETWORK = "tf_efficientnet_lite0"
SMALL = 96
Run = dict[str, Any]
Way = Callable[[SSLData, int], Run]


def scikit_learn(size: int | None) -> Way:
    """Plain features in PyTorch, then a logistic regression."""

    def run(data: SSLData, seed: int) -> Run:
        dataset = data.dataset
        encoder = make_encoder(Timm(NETWORK, input_size=size), dataset.shape)[0].eval()
        expects = encoder.preprocessing() or dataset
        views = ImageViews(expects.mean, expects.std)
        test = dataset.test
        assert test is not None

        def embedded(x: np.ndarray) -> np.ndarray:
            parts = [views.plain(torch.from_numpy(np.array(x[start : start + 64]))) for start in range(0, len(x), 64)]
            return torch.cat([features(encoder, part, ForwardOptions(16)) for part in parts]).float().numpy()

        scaler = StandardScaler().fit(train := embedded(dataset.train.x))
        rows = scaler.transform(train)[data.split.labeled]
        model = LogisticRegression(max_iter=1000).fit(rows, data.labeled_y)
        answers = model.predict(scaler.transform(embedded(test.x)))
        return {"error": float((answers != test.y).mean()), "network": NETWORK}

    return run


def library(**options: Any) -> Way:
    """`vcc_infuse.train` on images; what is not given is the default. `size` names one network, at that input size."""

    def run(data: SSLData, seed: int) -> Run:
        named = dict(options)
        if "size" in named:
            named |= {"preset": "frozen", "model": Timm(NETWORK, input_size=named.pop("size"))}
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as cache:
            summary = vcc_infuse.train(data, seed=seed, cache=cache, **named).summary
        network = f"{summary['encoder']} at {summary['input_size']} px"
        return {"error": summary["error"], "error_probe": summary.get("error_probe"), "network": network}

    return run


WAYS = {
    f"scikit-learn, {SMALL} px": scikit_learn(SMALL),
    "scikit-learn, native size": scikit_learn(None),
    f"FixMatch, {SMALL} px, PyTorch": library(size=SMALL, algorithm="FixMatch", cross_fit=False, engine="torch"),
    f"defaults, {NETWORK} at native size": library(size=None),
    "defaults": library(),
}


def measure(name: str, data: SSLData, seed: int) -> Run:
    """One run, with its CPU minutes."""
    began = time.process_time()
    run = WAYS[name](data, seed)
    return {"way": name, "seed": seed, **run, "minutes": (time.process_time() - began) / 60}


def page(runs: Sequence[Run], command: str) -> str:
    """The Markdown page."""
    lines = [
        "# Error against minutes",
        "",
        f"    {command}",
        "",
        "From images in memory to a model and its test error, every run with an empty cache; CPU minutes of one "
        "process, the choice of a network and its export included. Mean ± standard deviation over seeds, which are "
        "draws of labels. `defaults` is `vcc_infuse.train(data)` as it is; of the row above it only the network was "
        "named.",
        "",
        "| | minutes | error | seeds |",
        "|---|---|---|---|",
    ]
    for name, some in by_way(runs).items():
        minutes = spread([run["minutes"] for run in some], 2)
        errors = spread([100 * run["error"] for run in some], 1)
        lines.append(f"| {name} | {minutes} | {errors} % | {len(some)} |")
    chosen = Counter(run["network"] for run in runs if run["way"] == "defaults")
    if chosen:
        kinds = ", ".join(f"{network} ({count})" for network, count in chosen.most_common())
        lines += ["", f"Networks that the defaults chose on the labels: {kinds}."]
    return "\n".join(lines) + "\n"


def spread(values: Sequence[float], digits: int) -> str:
    """Mean ± standard deviation, of a single value the value."""
    noise = f" ± {np.std(values):.{digits}f}" if len(values) > 1 else ""
    return f"{np.mean(values):.{digits}f}{noise}"


def by_way(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """The runs of every way that has some."""
    found = {name: [run for run in runs if run["way"] == name] for name in WAYS}
    return {name: some for name, some in found.items() if some}


def draw(runs: Sequence[Run], title: str, path: Path) -> None:
    """The figure."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.6), layout="tight")
    axes = figure.subplots()
    for name, some in by_way(runs).items():
        minutes, errors = (np.array([run[key] for run in some]) for key in ("minutes", "error"))
        label = f"{name}: {100 * errors.mean():.1f} %"
        place = (minutes.mean(), 100 * errors.mean(), 100 * errors.std(), minutes.std())
        axes.errorbar(*place, fmt="o", markersize=8, capsize=4, label=label)
    axes.legend(frameon=False, fontsize="small")
    axes.set(xlabel="CPU minutes from images to a model", ylabel="test error in percent", title=title, ylim=(0, None))
    axes.set_xlim(0, 1.1 * max(run["minutes"] for run in runs))
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150, format="png")


def main(argv: Sequence[str]) -> None:
    """Measure what is missing, and write the page and the figure."""
    parser = Parser("python -m benchmarks minutes", "Error against minutes for five ways to a classifier.")
    parser.add_argument("--data", required=True, help="a zip or folder of labeled images with a test set")
    parser.add_argument("--labels", type=integer(2), default=40, help="labels that are shown (40)")
    parser.add_argument("--seeds", type=integer(), default=5, help="draws of the labels (5)")
    parser.add_argument("--out", default="results/minutes", help="writes OUT.json, OUT.md and OUT.png")
    options = parser.read(argv)
    command = f"OMP_NUM_THREADS=1 python -m benchmarks minutes {' '.join(argv)}"
    path = Path(f"{options.out}.json")
    runs: list[Run] = (read_json(path) or {}).get("runs", [])
    done = {(run["way"], run["seed"]) for run in runs}
    for seed in range(options.seeds):
        data = load_ssl(options.data, labels=options.labels, seed=seed, progress=False)
        for name in WAYS:
            if (name, seed) not in done:
                runs.append(measure(name, data, seed))
                write_json(path, {"command": command, "runs": runs})
                print(runs[-1], flush=True)
    title = f"{Path(options.data).stem}, {options.labels} labels"
    write_text(Path(f"{options.out}.md"), page(runs, command))
    write_atomic(Path(f"{options.out}.png"), lambda path: draw(runs, title, path))
