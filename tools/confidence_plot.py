"""Draw how every confidence does over a run, from a table of `python -m paper confidence`.

    python tools/confidence_plot.py results/scratch/confidence-scratch.json docs/vcc-why.png docs/vcc-why-truth.png

One column per setting; the mean over seeds. In the first picture, above: does it rank right labels before wrong ones
(AUROC)? Middle: is it too high or too low (mean minus share of right labels)? Below: how many labels reach FixMatch's
threshold of 0.95? In the second, of the end of the run: where is it too high, and how many labels are there? Below: how
many images of each class reach the threshold, over the run?
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # the package `paper` is beside this folder, not installed

from paper.confidences import EDGES

PANELS = {"auroc": "AUROC", "bias": "confidence minus accuracy", "coverage": "share at 0.95 or more"}
LINES = {
    "softmax": ("softmax", "black", "-"),
    "target r̃": ("target r̃", "tab:blue", "-"),
    "VCC: r of the VAE": ("r of the VAE", "tab:red", "-"),
    "ensemble score": ("ensemble score", "tab:green", ":"),
    "temporal score": ("temporal score", "tab:olive", ":"),
    "view score": ("view score", "tab:purple", ":"),
}
Entry = dict[str, Any]
Panel = Callable[[Any, list[Entry]], None]


def mean_curve(entry: Entry, metric: str) -> np.ndarray | None:
    """The mean over seeds, NaN where no seed has a value."""
    return mean_known([curve[metric] for curve in entry.get("curves", {}).values() if metric in curve])


def mean_known(curves: list[Any]) -> np.ndarray | None:
    """The mean over the first axis of what is known, NaN where nothing is; None without any."""
    if not curves:
        return None
    values = np.array(curves, dtype=float)
    known = ~np.isnan(values)
    return np.where(known.any(0), np.where(known, values, 0).sum(0) / np.maximum(known.sum(0), 1), np.nan)


def end_bins(entry: Entry) -> tuple[np.ndarray, np.ndarray] | None:
    """Of each bin at the end of the run: confidence minus accuracy, and its share of the rows; NaN in an empty one."""
    tables = [curve["bins"]["end"] for curve in entry.get("curves", {}).values() if curve.get("bins", {}).get("end")]
    if not tables:
        return None
    share, confidence, accuracy = (
        np.array([table[name] for table in tables], float) for name in ("share", "confidence", "accuracy")
    )
    total = share.sum(0)
    gap = np.nansum(share * (confidence - accuracy), axis=0) / np.where(total > 0, total, np.nan)
    return gap, np.where(total > 0, share.mean(0), np.nan)


def draw(entries: list[Entry], panels: dict[str, Panel], out: Path, *, sharex: bool = True) -> None:
    """All panels in one picture."""
    columns = list(dict.fromkeys(entry["column"] for entry in entries))
    height = 2.7 * len(panels)
    _, axes = plt.subplots(len(panels), len(columns), figsize=(4 * len(columns), height), squeeze=False, sharex=sharex)
    for place, column in enumerate(columns):
        axes[0, place].set_title(column)
        axes[-1, place].set_xlabel("per cent of the run")
        for row, (label, panel) in enumerate(panels.items()):
            panel(axes[row, place], [entry for entry in entries if entry["column"] == column])
            axes[row, 0].set_ylabel(label)
    axes[0, 0].legend(fontsize=8)
    plt.tight_layout()
    plt.savefig(out, dpi=90)
    plt.close()


def over_the_run(metric: str) -> Panel:
    """One metric over the run."""

    def panel(axis: Any, entries: list[Entry]) -> None:
        for entry in entries:
            curve = mean_curve(entry, metric) if entry["row"] in LINES else None
            if curve is not None:
                name, color, style = LINES[entry["row"]]
                axis.plot(np.linspace(5, 100, len(curve)), curve, style, color=color, label=name)
        if metric == "bias":
            axis.axhline(0, color="gray", linewidth=0.5)

    return panel


def over_bins(place: int, logarithmic: bool) -> Panel:
    """What `end_bins` has at a place, bin by bin."""

    def panel(axis: Any, entries: list[Entry]) -> None:
        for entry in entries:
            bins = end_bins(entry) if entry["row"] in LINES else None
            if bins is not None:
                name, color, style = LINES[entry["row"]]
                axis.plot(np.arange(len(bins[place])), bins[place], style, color=color, label=name, marker=".")
        axis.set_xticks(
            np.arange(len(EDGES)) - 0.5, [f"{edge:g}".removeprefix("0") or "0" for edge in EDGES], fontsize=7
        )
        if logarithmic:
            axis.set_yscale("log")
        else:
            axis.axhline(0, color="gray", linewidth=0.5)

    return panel


def classes_over_the_run(axis: Any, entries: list[Entry]) -> None:
    """The coverage of each class by the softmax and by r: a thin line each, and a thick one for the lowest."""
    for entry in entries:
        curve = mean_curve(entry, "coverage_per_class") if entry["row"] in ("softmax", "VCC: r of the VAE") else None
        if curve is not None:
            color = LINES[entry["row"]][1]
            where = np.linspace(5, 100, len(curve))
            axis.plot(where, curve, color=color, linewidth=0.6, alpha=0.5)
            axis.plot(where, np.nanmin(curve, axis=1), color=color, linewidth=2)


RUN = {label: over_the_run(metric) for metric, label in PANELS.items()}
TRUTH = {
    "confidence minus accuracy": over_bins(0, logarithmic=False),
    "share of the pool": over_bins(1, logarithmic=True),
    "share of a class at 0.95 or more": classes_over_the_run,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("run", type=Path, help="picture of the run")
    parser.add_argument("truth", type=Path, help="picture of the end against the truth, and of the classes")
    options = parser.parse_args()
    entries = json.loads(options.table.read_text("utf-8"))["entries"]
    draw(entries, RUN, options.run)
    known = {entry["column"] for entry in entries if end_bins(entry) is not None}  # earlier tables have no bins
    draw([entry for entry in entries if entry["column"] in known], TRUTH, options.truth, sharex=False)


if __name__ == "__main__":
    main()
