"""Histograms of the confidence of correct and of wrong predictions, before and after calibration."""

from __future__ import annotations

import numpy as np

from ..read import Run
from .chart import CORRECT, WRONG, Chart, Trace, axis, layout

BINS = 20
PANELS = (("confidence", "softmax", ""), ("calibrated", "calibrated", "2"))


def histogram(run: Run) -> Chart | None:
    """Shares of the correct and of the wrong predictions: there are few wrong ones, and counts would hide them."""
    if run.predictions is None or not len(run.predictions["truth"]):
        return None
    correct = run.predictions["truth"] == run.predictions["predicted"]
    data = [
        bars(run, run.predictions[column], correct == wanted, word, suffix)
        for column, _, suffix in PANELS
        for wanted, word in ((True, "correct"), (False, "wrong"))
    ]
    shape = layout(
        xaxis=axis("softmax, %", domain=[0, 0.45], range=[0, 100]), yaxis=axis("share of predictions, %"),
        xaxis2=axis("calibrated, %", domain=[0.55, 1], range=[0, 100], anchor="y2"),
        yaxis2=axis(anchor="x2", matches="y", showticklabels=False), barmode="overlay", bargap=0.05,
    )  # fmt: skip
    means = [
        f"{word}: {mean(run, column, correct)} correct, {mean(run, column, ~correct)} wrong"
        for column, word, _ in PANELS
    ]
    numbers = f"{int(correct.sum())} correct and {int((~correct).sum())} wrong predictions"
    alt = f"Confidence of {numbers} of {run.name}. Mean confidence, {'; '.join(means)}."
    return Chart("Confidence of correct and wrong predictions", alt, data, shape, f"{numbers}; each adds up to 100 %.")


def bars(run: Run, confidence: np.ndarray, members: np.ndarray, word: str, suffix: str) -> Trace:
    """One histogram."""
    counts, edges = np.histogram(np.clip(confidence[members], 0, 1), bins=BINS, range=(0, 1))
    share = 100 * counts / max(int(members.sum()), 1)
    return dict(
        type="bar", x=(50 * (edges[1:] + edges[:-1])).tolist(), y=share.tolist(), customdata=counts.tolist(),
        name=word, legendgroup=word, showlegend=not suffix, xaxis=f"x{suffix}", yaxis=f"y{suffix}", opacity=0.65,
        marker=dict(color=CORRECT if word == "correct" else WRONG), meta=dict(run=run.number),
        hovertemplate=f"%{{customdata}} {word} predictions, %{{y:.1f}} % of them<extra></extra>",
    )  # fmt: skip


def mean(run: Run, column: str, members: np.ndarray) -> str:
    """A mean confidence in words."""
    assert run.predictions is not None
    return f"{100 * float(run.predictions[column][members].mean()):.1f} %" if members.any() else "none"
