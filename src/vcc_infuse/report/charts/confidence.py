"""Histograms of the confidence of right and of wrong answers, before and after calibration."""

from __future__ import annotations

import numpy as np

from ..read import Run
from .chart import RIGHT, WRONG, Chart, Trace, axis, layout

BINS = 20


PANELS = (("confidence", "softmax", ""), ("calibrated", "calibrated", "2"))


def histogram(run: Run) -> Chart | None:
    """Shares of the right and of the wrong answers: the wrong ones are few, and counts would hide them."""
    if run.predictions is None or not len(run.predictions["truth"]):
        return None
    right = run.predictions["truth"] == run.predictions["predicted"]
    data = [
        bars(run, run.predictions[column], right == wanted, word, suffix)
        for column, _, suffix in PANELS
        for wanted, word in ((True, "right"), (False, "wrong"))
    ]
    shape = layout(
        xaxis=axis("softmax confidence, %", domain=[0, 0.47], range=[0, 100]), yaxis=axis("share of answers, %"),
        xaxis2=axis("calibrated confidence, %", domain=[0.53, 1], range=[0, 100], anchor="y2"),
        yaxis2=axis(anchor="x2", matches="y", showticklabels=False), barmode="overlay", bargap=0.05,
    )  # fmt: skip
    means = [
        f"{word}: {mean(run, column, right)} right, {mean(run, column, ~right)} wrong" for column, word, _ in PANELS
    ]
    numbers = f"{int(right.sum())} right and {int((~right).sum())} wrong answers"
    alt = f"Confidence of {numbers} of {run.name}. Mean confidence, {'; '.join(means)}."
    return Chart("Confidence of right and wrong answers", alt, data, shape, f"{numbers}; each adds up to 100 %.")


def bars(run: Run, confidence: np.ndarray, members: np.ndarray, word: str, suffix: str) -> Trace:
    """One histogram."""
    counts, edges = np.histogram(np.clip(confidence[members], 0, 1), bins=BINS, range=(0, 1))
    share = 100 * counts / max(int(members.sum()), 1)
    return dict(
        type="bar", x=(50 * (edges[1:] + edges[:-1])).tolist(), y=share.tolist(), customdata=counts.tolist(),
        name=word, legendgroup=word, showlegend=not suffix, xaxis=f"x{suffix}", yaxis=f"y{suffix}", opacity=0.65,
        marker=dict(color=RIGHT if word == "right" else WRONG), meta=dict(run=run.number),
        hovertemplate=f"%{{customdata}} {word} answers, %{{y:.1f}} % of them<extra></extra>",
    )  # fmt: skip


def mean(run: Run, column: str, members: np.ndarray) -> str:
    """A mean confidence in words."""
    assert run.predictions is not None
    return f"{100 * float(run.predictions[column][members].mean()):.1f} %" if members.any() else "none"
