"""The reliability diagram as an RGB array: how often predictions of like confidence are right, before and after."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

BAR, MARK = "#4c78a8", "#e45756"


def reliability_picture(figures: dict[str, Any]) -> np.ndarray:
    """Height × width × 3 bytes: the softmax confidence on the left, the calibrator's on the right."""
    # Not pyplot: it keeps every figure it has made, and chooses a backend for the whole process.
    figure = Figure(figsize=(6.4, 3.4), dpi=100, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    for axes, suffix in zip(figure.subplots(1, 2), ("", "_calibrated"), strict=True):
        draw(axes, figures[f"reliability{suffix}"])
        axes.set_title(f"{'calibrated' if suffix else 'softmax'}: ECE {figures[f'ece{suffix}']:.1%}", fontsize=10)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[:, :, :3].copy()


def draw(axes: Axes, diagram: dict[str, list[Any]]) -> None:
    """A bar a bin as high as its accuracy, a dot at its confidence; bins without examples stay empty."""
    bins = len(diagram["count"])
    filled = [i for i, count in enumerate(diagram["count"]) if count]
    accuracy, confidence = ([diagram[name][i] for i in filled] for name in ("accuracy", "confidence"))
    axes.bar([i / bins for i in filled], accuracy, 1 / bins, align="edge", color=BAR, edgecolor="white", linewidth=0.5)
    axes.plot([0, 1], [0, 1], color="gray", linestyle="--", linewidth=0.8)
    axes.plot(confidence, accuracy, "o", color=MARK, markersize=3)
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", ylabel="accuracy")
