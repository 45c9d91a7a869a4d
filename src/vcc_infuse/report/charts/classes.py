"""Charts per class: pseudo labels and thresholds, at the last evaluation and over time, and the confusion matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..format import known, label, percent, scaled
from ..read import Run
from .chart import Chart, Trace, all_classes, axis, class_axis, color, layout

PER_CLASS = {
    "pseudo_label_precision_per_class": "Pseudo-label precision per class",
    "pseudo_label_coverage_per_class": "Pseudo-label coverage per class",
    "threshold_per_class": "Threshold per class",
}
MANY = 40  # classes without gaps between their rows
READABLE = 20  # classes with a number in each cell


def last_bars(runs: Sequence[Run], key: str) -> Chart | None:
    """The metric of each class at the last evaluation."""
    values = [(run, list(run.metrics[-1].get(key) or [])) for run in runs if run.metrics]
    return class_bars(all_classes(runs), values, PER_CLASS[key])


def class_bars(classes: list[str], values: Sequence[tuple[Run, list[Any]]], title: str, note: str = "") -> Chart | None:
    """One bar per run and class; runs with different classes share one axis."""
    place = {name: number for number, name in enumerate(classes)}
    data = []
    sentences = []
    for run, shares in values:
        pairs = [(name, v) for name, v in zip(run.classes, shares, strict=False) if known(v)]
        if not pairs:
            continue
        data.append(dict(
            type="bar", name=label(run.name), x=[place[name] for name, _ in pairs], y=scaled([v for _, v in pairs]),
            customdata=[label(name, 60) for name, _ in pairs], marker=dict(color=color(run.number)),
            meta=dict(run=run.number), hovertemplate="%{customdata}: %{y:.1f} %",
        ))  # fmt: skip
        sentences.append(f"{run.name}: {extremes(pairs)}")
    if not data:
        return None
    shape = layout(xaxis=class_axis(classes), yaxis=axis("percent", rangemode="tozero"), showlegend=False)
    return Chart(title, f"{title}. {'; '.join(sentences)}.", data, shape, note)


def extremes(pairs: Sequence[tuple[str, float]]) -> str:
    """The bars in words: each of a few classes, or the lowest and the highest of many."""
    if len(pairs) <= 12:
        return ", ".join(f"{name} {percent(value)}" for name, value in pairs)
    low_name, low = min(pairs, key=lambda pair: pair[1])
    high_name, high = max(pairs, key=lambda pair: pair[1])
    return f"from {percent(low)} ({low_name}) to {percent(high)} ({high_name}) over {len(pairs)} classes"


def heatmap_over_time(run: Run, key: str) -> Chart | None:
    """The metric of each class at every evaluation, as a heatmap; None before the second evaluation."""
    lines = [line for line in run.metrics if line.get(key) and known(line.get("step"))]
    if len(lines) < 2:
        return None
    rows = [[v if v is None else round(v, 2) for v in scaled(line[key])] for line in lines]
    steps = [line["step"] for line in lines]
    gap = int(len(run.classes) <= MANY)
    trace = dict(
        type="heatmap", x=steps, y=[label(name, 60) for name in run.classes], xgap=gap, ygap=gap,
        z=[list(column) for column in zip(*rows, strict=True)], coloraxis="coloraxis", meta=dict(run=run.number),
        hovertemplate="%{y}, step %{x}: %{z:.1f} %<extra></extra>",
    )  # fmt: skip
    shape = layout(xaxis=axis("steps"), yaxis=class_axis(run.classes, type="category"), showlegend=False)
    shape["coloraxis"] = dict(cmin=0, cmax=100, colorbar=dict(thickness=10, ticksuffix=" %", outlinewidth=0))
    title = f"{PER_CLASS[key]}, over time"
    first, final = (percent(mean_of_known(lines[i][key])) for i in (0, -1))
    alt = f"{title}, {run.name}: the mean over classes goes from {first} at step {steps[0]} to {final} at {steps[-1]}."
    return Chart(title, alt, [trace], shape, height=340)


def mean_of_known(values: Sequence[Any]) -> float | None:
    """The mean of the known values, None if there are none."""
    seen = [value for value in values if known(value)]
    return sum(seen) / len(seen) if seen else None


def confusion_counts(run: Run) -> np.ndarray | None:
    """Predictions per true class (row) and predicted class (column); None if the run kept no predictions."""
    if run.predictions is None or not len(run.predictions["truth"]):
        return None
    size = len(run.classes)
    cells = run.predictions["truth"].astype(np.int64) * size + run.predictions["predicted"]
    return np.bincount(cells, minlength=size**2).reshape(size, size)


def confusion_matrix(run: Run) -> Chart | None:
    """Counts in the cells, colored by the share of the true class."""
    counts = confusion_counts(run)
    if counts is None:
        return None
    share = np.round(100 * counts / np.maximum(counts.sum(1, keepdims=True), 1), 2)
    gap = int(len(run.classes) <= READABLE)
    full = [label(name, 60) for name in run.classes]
    trace: Trace = dict(
        type="heatmap", x=full, y=full, z=share.tolist(), customdata=counts.tolist(), zmin=0, zmax=100,
        xgap=gap, ygap=gap, coloraxis="coloraxis", meta=dict(run=run.number),
        hovertemplate="%{y} predicted as %{x}: %{customdata} (%{z:.1f} % of the class)<extra></extra>",
    )  # fmt: skip
    if gap:
        cells = [[str(n) if n else "" for n in row] for row in counts.tolist()]
        trace |= dict(text=cells, texttemplate="%{text}")
    columns = class_axis(run.classes, "predicted", type="category")
    rows = class_axis(run.classes, "true class", type="category") | dict(range=[len(counts) - 0.5, -0.5])
    shade = dict(showscale=False, cmin=0, cmax=100)
    shape = layout(xaxis=columns, yaxis=rows, showlegend=False, coloraxis=shade)
    return Chart("Confusion matrix", confusion_sentence(run, counts), [trace], shape, height=440)


def confusion_sentence(run: Run, counts: np.ndarray) -> str:
    """The matrix in words: its diagonal and the pairs confused most often."""
    names = run.classes
    off = counts - np.diag(np.diag(counts))
    worst = [np.unravel_index(i, off.shape) for i in np.argsort(-off, axis=None)[:3]]
    pairs = [f"{names[a]} predicted as {names[b]} {off[a, b]} times" for a, b in worst if off[a, b]]
    most = f" Most confused: {', '.join(pairs)}." if pairs else ""
    right = f"{np.trace(counts)} of {counts.sum()} predictions are correct"
    return f"Confusion matrix of {run.name} on {run.measured_on} images: {right}.{most}"
