"""Charts of the predictions: reliability diagrams before and after calibration, histograms, the confusion matrix.

`Chart` and the layout that all charts share come first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..read import Metrics, Run, count, decimal, known, label, percent, scaled

COLORS = ("#3b82f6", "#f0701a", "#10a37f", "#a463f2", "#e0457b", "#0ea5b7", "#b58900", "#7c8798", "#84a300", "#c2410c")
Trace = dict[str, Any]
BINS = 20
PANELS = (("confidence", "softmax", ""), ("calibrated", "calibrated", "2"))
POINTS = 400  # of a curve; more cannot be seen
READABLE = 20  # classes with a number in each cell of the confusion matrix


@dataclass(frozen=True, eq=False)
class Chart:
    """A figure and its words. In a trace, `meta.run` is its run; `meta.steps` and `meta.seconds` are its two x axes."""

    title: str
    alt: str
    data: list[Trace]
    layout: dict[str, Any]
    note: str = ""
    height: int = 300


def color(number: int) -> str:
    """The color of a run, or of a line if there is only one run."""
    return COLORS[number % len(COLORS)]


def layout(x: str = "", y: str = "", **rest: Any) -> dict[str, Any]:
    """The layout shared by all charts. Text and grid colors come from the page, which follows light and dark mode."""
    shared = dict(margin=dict(l=8, r=12, t=8, b=8), hovermode="closest", showlegend=True, dragmode="zoom",
                  legend=dict(orientation="h", x=0, y=1.02, yanchor="bottom"), barmode="group", bargap=0.2)  # fmt: skip
    return {**shared, "xaxis": axis(x), "yaxis": axis(y), **rest}


def axis(title: str = "", **rest: Any) -> dict[str, Any]:
    """One axis."""
    named = dict(title=dict(text=title, standoff=8)) if title else {}
    return dict(**named, automargin=True, **rest)


def class_axis(classes: Sequence[str], title: str = "", most: int = 26, **rest: Any) -> dict[str, Any]:
    """An axis of class numbers labeled with class names; if there are very many classes, only some are labeled."""
    shown = range(0, len(classes), -(-len(classes) // most) or 1)
    return axis(title, tickmode="array", tickvals=list(shown), ticktext=[label(classes[i], 14) for i in shown],
                range=[-0.5, len(classes) - 0.5], **rest)  # fmt: skip


def softmax_diagram(runs: Sequence[Run]) -> Chart | None:
    """The diagram of the softmax confidence."""
    title = "Before calibration (softmax)" if any(map(is_calibrated, runs)) else "Confidence (softmax)"
    return diagram(runs, title, "reliability", "ece")


def calibrated_diagram(runs: Sequence[Run]) -> Chart | None:
    """The diagram of the calibrated confidence; none if no run has a calibrator, because it would be the same."""
    differs = any(map(is_calibrated, runs))
    return diagram(runs, "After calibration", "reliability_calibrated", "ece_calibrated") if differs else None


def is_calibrated(run: Run) -> bool:
    """Whether the calibrated confidence differs from the softmax's."""
    return bool(run.latest.get("reliability_calibrated") != run.latest.get("reliability"))


def diagram(runs: Sequence[Run], title: str, key: str, ece: str) -> Chart | None:
    """Accuracy over confidence, and below it the number of predictions per bin."""
    drawn = [run for run in runs if run.latest.get(key)]
    if not drawn:
        return None
    ideal = dict(type="scatter", mode="lines", x=[0, 100], y=[0, 100], name="ideal", hoverinfo="skip",
                 line=dict(color="#8a93a3", dash="dash", width=1.5))  # fmt: skip
    data = [*(t for run in drawn for t in diagram_traces(run, run.latest[key], len(runs) == 1)), ideal]
    shape = layout(
        xaxis=axis("confidence, percent", range=[0, 100], anchor="y2"), yaxis=axis("accuracy, %", domain=[0.34, 1]),
        yaxis2=axis("predictions", domain=[0, 0.24]), showlegend=False,
    )  # fmt: skip
    shape["yaxis"]["range"] = [0, 104]
    errors = [f"ECE {decimal(run.latest.get(ece))}" for run in drawn]
    named = [f"{run.name}: {text}" for run, text in zip(drawn, errors, strict=True)]
    bins = [f"{text}, {fullest_bin(run.latest[key])}" for run, text in zip(drawn, named, strict=True)]
    alt = f"Reliability diagram, {title.lower()}. {'; '.join(bins)}."
    return Chart(title, alt, data, shape, errors[0] if len(runs) == 1 else " · ".join(named), height=360)


def diagram_traces(run: Run, table: Metrics, single: bool) -> list[Trace]:
    """The accuracy per bin (bars for a single run, a line for several) and the count per bin."""
    counts = table["count"]
    width = 100 / len(counts)
    middle = [(i + 0.5) * width for i in range(len(counts))]
    shared: dict[str, Any] = dict(name=label(run.name), meta=dict(run=run.number))
    hover = "%{customdata[0]} predictions with confidence %{customdata[1]:.1f} %: %{y:.1f} % correct<extra></extra>"
    accuracy: Trace = dict(
        **shared, x=middle, y=scaled(table["accuracy"]), hovertemplate=hover,
        customdata=list(map(list, zip(counts, scaled(table["confidence"]), strict=True))),
    )  # fmt: skip
    tint = color(run.number)
    if single:
        accuracy |= dict(type="bar", width=width * 0.92, marker=dict(color=tint))
    else:
        accuracy |= dict(type="scatter", mode="lines+markers", line=dict(color=tint, width=2), connectgaps=True)
    number = dict(**shared, type="bar", x=middle, y=counts, yaxis="y2", marker=dict(color=tint, opacity=0.6),
                  hovertemplate="%{y} predictions<extra></extra>")  # fmt: skip
    return [accuracy, number]


def fullest_bin(table: Metrics) -> str:
    """The fullest bin in words."""
    counts = table["count"]
    fullest = max(range(len(counts)), key=counts.__getitem__)
    low, high = (100 * (fullest + i) / len(counts) for i in (0, 1))
    accuracy = table["accuracy"][fullest]
    share = f", {100 * accuracy:.1f} % of them correct" if known(accuracy) else ""
    most = f"{count(counts[fullest])} of {count(sum(counts))}"
    return f"{most} predictions have {low:.0f} to {high:.0f} % confidence{share}"


def confidence_histogram(run: Run) -> Chart | None:
    """Shares of the correct and of the wrong predictions; counts would hide the wrong ones, which are few."""
    if run.predictions is None or not len(run.predictions["truth"]):
        return None
    correct = run.predictions["truth"] == run.predictions["predicted"]
    data = [
        histogram_bars(run, run.predictions[column], correct == wanted, word, suffix)
        for column, _, suffix in PANELS
        for wanted, word in ((True, "correct"), (False, "wrong"))
    ]
    shape = layout(
        xaxis=axis("softmax, %", domain=[0, 0.45], range=[0, 100]), yaxis=axis("share of predictions, %"),
        xaxis2=axis("calibrated, %", domain=[0.55, 1], range=[0, 100], anchor="y2"),
        yaxis2=axis(anchor="x2", matches="y", showticklabels=False), barmode="overlay", bargap=0.05,
    )  # fmt: skip
    means = []
    for column, word, _ in PANELS:
        parts = [run.predictions[column][members] for members in (correct, ~correct)]
        texts = [percent(float(part.mean())) if len(part) else "none" for part in parts]
        means.append(f"{word}: {texts[0]} correct, {texts[1]} wrong")
    numbers = f"{int(correct.sum())} correct and {int((~correct).sum())} wrong predictions"
    alt = f"Confidence of {numbers} of {run.name}. Mean confidence, {'; '.join(means)}."
    return Chart("Confidence of correct and wrong predictions", alt, data, shape, f"{numbers}; each adds up to 100 %.")


def histogram_bars(run: Run, confidence: np.ndarray, members: np.ndarray, word: str, suffix: str) -> Trace:
    """One histogram."""
    counts, edges = np.histogram(np.clip(confidence[members], 0, 1), bins=BINS, range=(0, 1))
    share = 100 * counts / max(int(members.sum()), 1)
    return dict(
        type="bar", x=(50 * (edges[1:] + edges[:-1])).tolist(), y=share.tolist(), customdata=counts.tolist(),
        name=word, legendgroup=word, showlegend=not suffix, xaxis=f"x{suffix}", yaxis=f"y{suffix}", opacity=0.65,
        marker=dict(color=COLORS[int(word == "wrong")]), meta=dict(run=run.number),
        hovertemplate=f"%{{customdata}} {word} predictions, %{{y:.1f}} % of them<extra></extra>",
    )  # fmt: skip


def abstain_curve(run: Run) -> Chart | None:
    """The error of the answers that are left when unsure ones are left out, and the cuts that the run suggests."""
    if run.predictions is None or not len(run.predictions["truth"]):
        return None
    confidence = np.sort(run.predictions["calibrated"])[::-1]
    order = np.argsort(-run.predictions["calibrated"], kind="stable")
    wrong = (run.predictions["truth"] != run.predictions["predicted"])[order].cumsum()
    answered = np.arange(1, len(wrong) + 1)
    ends = np.flatnonzero(np.append(np.diff(confidence) != 0, True))  # no cut tells equal confidences apart
    ends = ends[np.unique(np.linspace(0, len(ends) - 1, min(len(ends), POINTS)).astype(int))]
    hover = "cut %{customdata:.3g}: %{x:.0f} % answered, %{y:.1f} % of the answers wrong<extra></extra>"
    curve: Trace = dict(
        type="scatter", mode="lines", x=(100 * answered[ends] / len(wrong)).tolist(), name="every cut",
        y=(100 * wrong[ends] / answered[ends]).tolist(), customdata=confidence[ends].tolist(), hovertemplate=hover,
        line=dict(color=color(run.number), width=2), meta=dict(run=run.number),
    )  # fmt: skip
    cuts = run.latest.get("abstain") or []
    shape = layout(xaxis=axis("answered, %", range=[0, 102]), yaxis=axis("error of the answers, %", rangemode="tozero"))
    words = "; ".join(cut_in_words(cut) for cut in cuts)
    everything = f"{int(wrong[-1])} of all {len(wrong)} answers are wrong"
    alt = (
        f"Error of the answers of {run.name} over the share that is answered: {everything}. {words or 'No cut helps'}."
    )
    note = "".join(f"Suggested: {cut_in_words(cut)}." for cut in cuts if cut["suggested"])
    return Chart("Answer only what is sure", alt, [curve, *cut_markers(run, cuts)], shape, note)


def cut_markers(run: Run, cuts: Sequence[Metrics]) -> list[Trace]:
    """A marker per cut with the 95 % interval of its error, labeled with its value."""
    if not cuts:
        return []
    above, below = ([100 * abs(cut[end] - cut["error"]) for cut in cuts] for end in ("error_high", "error_low"))
    return [dict(
        type="scatter", mode="markers+text", name="cuts, with 95 % intervals", meta=dict(run=run.number),
        x=[100 * cut["coverage"] for cut in cuts], y=[100 * cut["error"] for cut in cuts],
        text=[f"{cut['cut']:g}" for cut in cuts], textposition="top left", cliponaxis=False,
        hovertext=list(map(cut_in_words, cuts)), hoverinfo="text",
        error_y=dict(array=above, arrayminus=below, width=4, thickness=1.2),
        marker=dict(size=[11 if cut["suggested"] else 7 for cut in cuts], color=COLORS[1]),
    )]  # fmt: skip


def cut_in_words(cut: Metrics) -> str:
    """A cut, what it answers, and the error of the answers."""
    interval = f"95 % interval {percent(cut['error_low'], 0)} to {percent(cut['error_high'], 0)}"
    share = f"{percent(cut['coverage'], 0)} answered, {percent(cut['error'])} of the answers wrong ({interval})"
    return f"--abstain {cut['cut']:g}: {share}"


def confusion_matrix(run: Run) -> Chart | None:
    """Counts per true class (row) and predicted class (column), colored by the share of the true class."""
    if run.predictions is None or not len(run.predictions["truth"]):
        return None
    size = len(run.classes)
    pairs = run.predictions["truth"].astype(np.int64) * size + run.predictions["predicted"]
    counts = np.bincount(pairs, minlength=size**2).reshape(size, size)
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
    rows = class_axis(run.classes, "true class", type="category") | dict(range=[size - 0.5, -0.5])
    shade = dict(showscale=False, cmin=0, cmax=100)
    shape = layout(xaxis=columns, yaxis=rows, showlegend=False, coloraxis=shade)
    off = counts - np.diag(np.diag(counts))
    worst = [np.unravel_index(i, off.shape) for i in np.argsort(-off, axis=None)[:3]]
    confused = [f"{run.classes[a]} predicted as {run.classes[b]} {off[a, b]} times" for a, b in worst if off[a, b]]
    most = f" Most confused: {', '.join(confused)}." if confused else ""
    right = f"{np.trace(counts)} of {counts.sum()} predictions are correct"
    alt = f"Confusion matrix of {run.name} on {run.measured_on} images: {right}.{most}"
    note = "A click on a cell shows images behind it." if "cells_images" in (run.gallery or {}) else ""
    return Chart("Confusion matrix", alt, [trace], shape, note, height=440)
