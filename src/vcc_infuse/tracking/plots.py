"""The reliability diagram as an RGB array: accuracy per confidence bin, before and after calibration."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

BAR, MARK = "#4c78a8", "#e45756"


def reliability_image(metrics: dict[str, Any]) -> np.ndarray:
    """Height × width × 3 bytes: the softmax confidence on the left, the calibrated confidence on the right."""
    # Not pyplot, which keeps every figure in memory and chooses a backend for the whole process.
    figure = Figure(figsize=(6.4, 3.4), dpi=100, layout="constrained")
    for axes, suffix in zip(figure.subplots(1, 2), ("", "_calibrated"), strict=True):
        draw(axes, metrics[f"reliability{suffix}"])
        axes.set_title(f"{'calibrated' if suffix else 'softmax'}: ECE {metrics[f'ece{suffix}']:.1%}", fontsize=10)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return np.asarray(Image.open(buffer).convert("RGB"))


def draw(axes: Axes, diagram: dict[str, list[Any]]) -> None:
    """One bar per bin, as high as its accuracy, and a dot at its mean confidence; bins without examples stay empty."""
    bins = len(diagram["count"])
    filled = [i for i, count in enumerate(diagram["count"]) if count]
    accuracy, confidence = ([diagram[name][i] for i in filled] for name in ("accuracy", "confidence"))
    axes.bar([i / bins for i in filled], accuracy, 1 / bins, align="edge", color=BAR, edgecolor="white", linewidth=0.5)
    axes.plot([0, 1], [0, 1], color="gray", linestyle="--", linewidth=0.8)
    axes.plot(confidence, accuracy, "o", color=MARK, markersize=3)
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", ylabel="accuracy")
