"""Draw how every confidence does over a run, from a table of `python -m paper confidence`.

    python tools/confidence_plot.py results/scratch/confidence-scratch.json docs/vcc-why.png

One column per setting; the mean over seeds. Above: does it rank right labels before wrong ones (AUROC)? Middle: is it
too high or too low (mean minus share of right labels)? Below: how many labels reach FixMatch's threshold of 0.95?
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

PANELS = {"auroc": "AUROC", "bias": "confidence minus accuracy", "coverage": "share at 0.95 or more"}
LINES = {
    "softmax": ("softmax", "black", "-"),
    "target r̃": ("target r̃", "tab:blue", "-"),
    "VCC: r of the VAE": ("r of the VAE", "tab:red", "-"),
    "ensemble score": ("ensemble score", "tab:green", ":"),
    "temporal score": ("temporal score", "tab:olive", ":"),
    "view score": ("view score", "tab:purple", ":"),
}


def mean_curve(entry: dict[str, Any], metric: str) -> np.ndarray | None:
    """The mean over seeds, NaN where no seed has a value."""
    curves = [curve[metric] for curve in entry.get("curves", {}).values() if metric in curve]
    if not curves:
        return None
    values = np.array(curves, dtype=float)
    known = ~np.isnan(values)
    return np.where(known.any(0), np.where(known, values, 0).sum(0) / np.maximum(known.sum(0), 1), np.nan)


def draw(entries: list[dict[str, Any]], out: Path) -> None:
    """All panels in one picture."""
    columns = list(dict.fromkeys(entry["column"] for entry in entries))
    _, axes = plt.subplots(len(PANELS), len(columns), figsize=(4 * len(columns), 8), squeeze=False, sharex=True)
    for place, column in enumerate(columns):
        axes[0, place].set_title(column)
        axes[-1, place].set_xlabel("per cent of the run")
        for row, (metric, label) in enumerate(PANELS.items()):
            panel(axes[row, place], [entry for entry in entries if entry["column"] == column], metric)
            axes[row, 0].set_ylabel(label)
    axes[0, 0].legend(fontsize=8)
    plt.tight_layout()
    plt.savefig(out, dpi=90)


def panel(axis: Any, entries: list[dict[str, Any]], metric: str) -> None:
    """One metric in one setting."""
    for entry in entries:
        curve = mean_curve(entry, metric) if entry["row"] in LINES else None
        if curve is not None:
            name, color, style = LINES[entry["row"]]
            axis.plot(np.linspace(5, 100, len(curve)), curve, style, color=color, label=name)
    if metric == "bias":
        axis.axhline(0, color="gray", linewidth=0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    draw(json.loads(options.table.read_text("utf-8"))["entries"], options.out)


if __name__ == "__main__":
    main()
