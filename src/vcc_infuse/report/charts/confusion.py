"""The confusion matrix of the test or validation set."""

from __future__ import annotations

import numpy as np

from ..format import label, name_of
from ..read import Run
from .chart import Chart, Trace, class_axis, layout

READABLE = 20


def matrix(run: Run) -> np.ndarray | None:
    """Predictions per true class (row) and predicted class (column); None if the run kept no predictions."""
    if run.predictions is None or not len(run.predictions["truth"]):
        return None
    truth, predicted = (run.predictions[name].astype(np.int64) for name in ("truth", "predicted"))
    size = max(len(run.classes), int(truth.max()) + 1, int(predicted.max()) + 1)
    return np.bincount(truth * size + predicted, minlength=size**2).reshape(size, size)


def confusion(run: Run) -> Chart | None:
    """Counts in the cells, colored by the share of the true class."""
    counts = matrix(run)
    if counts is None:
        return None
    names = [name_of(run.classes, i) for i in range(len(counts))]
    share = np.round(100 * counts / np.maximum(counts.sum(1, keepdims=True), 1), 2)
    gap = int(len(names) <= READABLE)
    full = [label(name, 60) for name in names]
    trace: Trace = dict(
        type="heatmap", x=full, y=full, z=share.tolist(), customdata=counts.tolist(), zmin=0, zmax=100,
        xgap=gap, ygap=gap, coloraxis="coloraxis", meta=dict(run=run.number),
        hovertemplate="%{y} predicted as %{x}: %{customdata} (%{z:.1f} % of the class)<extra></extra>",
    )  # fmt: skip
    if len(names) <= READABLE:
        cells = [[str(n) if n else "" for n in row] for row in counts.tolist()]
        trace |= dict(text=cells, texttemplate="%{text}")
    shape = layout(
        xaxis=class_axis(names, "predicted", type="category"),
        yaxis=class_axis(names, "true class", type="category"),
        showlegend=False,
    )
    shape["yaxis"]["range"] = [len(names) - 0.5, -0.5]
    shape["coloraxis"] = dict(showscale=False, cmin=0, cmax=100)
    return Chart("Confusion matrix", describe(run, counts, names), [trace], shape, height=440)


def describe(run: Run, counts: np.ndarray, names: list[str]) -> str:
    """The matrix in words: its diagonal and the pairs confused most often."""
    off = counts - np.diag(np.diag(counts))
    worst = [np.unravel_index(i, off.shape) for i in np.argsort(-off, axis=None)[:3]]
    pairs = [f"{names[a]} predicted as {names[b]} {off[a, b]} times" for a, b in worst if off[a, b]]
    most = f" Most confused: {', '.join(pairs)}." if pairs else ""
    right = f"{np.trace(counts)} of {counts.sum()} predictions are correct"
    return f"Confusion matrix of {run.name} on {run.measured_on} images: {right}.{most}"
