"""Charts of the training: curves, metrics per class, and what the core sets hold. page.js switches steps and time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from ..read import Run, count, decimal, known, label, percent, scaled
from .calibration import Chart, Trace, axis, class_axis, color, is_calibrated, layout

DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
MUTED = "rgba(128,134,148,0.45)"
PER_CLASS = {
    "pseudo_label_precision_per_class": "Pseudo-label precision per class",
    "pseudo_label_coverage_per_class": "Pseudo-label coverage per class",
    "threshold_per_class": "Threshold per class",
}
POINTS = 40  # of a fitted curve
MANY = 40  # classes without gaps between their rows


def error_curve(runs: Sequence[Run]) -> Chart | None:
    """Test error, or error on the labels kept for validation."""
    kinds = " or ".join(sorted({run.measured_on for run in runs}))
    return curves(runs, f"{kinds} error".capitalize(), {"error": "error"})


def ece_curves(runs: Sequence[Run]) -> Chart | None:
    """ECE of the softmax confidence and, if any run has a calibrator, of the calibrated one."""
    calibrated = {"ece_calibrated": "calibrated"} if any(map(is_calibrated, runs)) else {}
    return curves(runs, "Calibration error (ECE)", {**calibrated, "ece": "softmax"})


def pseudo_label_curves(runs: Sequence[Run]) -> Chart | None:
    """The fraction of pseudo labels that are used, and the fraction of those that are correct."""
    return curves(runs, "Pseudo labels", {"pseudo_label_precision": "precision", "pseudo_label_coverage": "coverage"})


def loss_curves(runs: Sequence[Run]) -> Chart | None:
    """Every loss term, averaged since the previous evaluation."""
    terms = [key for run in runs for line in run.metrics for key in line if key.startswith("loss_")]
    names = {key: key.removeprefix("loss_").replace("_", " ") for key in terms}
    return curves(runs, "Losses", names, as_percent=False)


def curves(runs: Sequence[Run], title: str, names: dict[str, str], *, as_percent: bool = True) -> Chart | None:
    """One line per run and metric. Several runs differ by color and metrics by dash; metrics of a single run by color.

    `names`: the keys of the metrics in metrics.jsonl, and their names on the page.
    """
    single = len(runs) == 1
    data: list[Trace] = []
    sentences = []
    for run in runs:
        steps = run.series("step")
        for place, (key, name) in enumerate(names.items()):
            values = run.series(key)
            if not (seen := [value for value in values if known(value)]):
                continue
            ends = [percent(value) if as_percent else decimal(value) for value in (seen[0], seen[-1])]
            course = f"is {ends[1]}" if len(seen) == 1 else f"goes from {ends[0]} to {ends[1]}"
            sentences.append(f"{name} of {run.name} {course}")
            dash = DASHES[0 if single else place % len(DASHES)]
            data.append(dict(
                type="scatter", mode="lines+markers", name=label(name if single else f"{run.name} · {name}", 48),
                x=steps, connectgaps=False, y=scaled(values, 100 if as_percent else 1),
                hovertemplate="%{y:.2f} %" if as_percent else "%{y:.3f}",
                line=dict(color=color(place if single else run.number), width=2, dash=dash), marker=dict(size=5),
                meta=dict(run=run.number, steps=steps, seconds=run.series("seconds")),
            ))  # fmt: skip
    if not data:
        return None
    shape = layout("steps", "percent" if as_percent else "loss", hovermode="x unified")
    shape["showlegend"] = single and len(names) > 1
    shape["yaxis"]["rangemode"] = "tozero"
    dashes = " · ".join(f"{name} {DASHES[i % len(DASHES)]}" for i, name in enumerate(names.values()))
    note = "" if single or len(names) == 1 else f"Line styles: {dashes}."
    return Chart(title, f"{title}: {'; '.join(sentences)}.", data, shape, note)


def last_bars(runs: Sequence[Run], key: str) -> Chart | None:
    """The metric of each class at the last evaluation."""
    return class_bars(runs, [run.metrics[-1].get(key) or [] if run.metrics else [] for run in runs], PER_CLASS[key])


def kept_bars(runs: Sequence[Run]) -> Chart | None:
    """The share of each pseudo class that was kept; none of a class that the pool does not have."""
    shares: list[list[float | None]] = []
    for run in runs:
        line = run.last_selection("pool_share_per_class") or {}
        if not line.get("kept_share"):
            line = {"kept_share": 0, "kept_share_per_class": [], "pool_share_per_class": []}
        pairs = zip(line["kept_share_per_class"], line["pool_share_per_class"], strict=True)
        shares.append([line["kept_share"] * kept / pool if pool else None for kept, pool in pairs])
    return class_bars(runs, shares, "Kept share of each pseudo class")


def true_class_bars(runs: Sequence[Run]) -> Chart | None:
    """The true classes of the kept examples, where they are known; also for selectors without scores."""
    key = "kept_share_per_true_class"
    shares = [(run.last_selection(key) or {}).get(key, []) for run in runs]
    known_truth = [values if sum(values) > 0 else [] for values in shares]
    return class_bars(runs, known_truth, "True classes in the core set", "Each run adds up to 100 %.")


def class_bars(runs: Sequence[Run], shares: Sequence[Sequence[Any]], title: str, note: str = "") -> Chart | None:
    """One bar per run and class; runs with different classes share one axis."""
    classes = list(dict.fromkeys(name for run in runs for name in run.classes))
    place = {name: number for number, name in enumerate(classes)}
    data = []
    sentences = []
    for run, values in zip(runs, shares, strict=True):
        pairs = [(name, value) for name, value in zip(run.classes, values, strict=False) if known(value)]
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
    seen = ([value for value in lines[i][key] if known(value)] for i in (0, -1))
    first, final = (percent(sum(values) / len(values) if values else None) for values in seen)
    alt = f"{title}, {run.name}: the mean over classes goes from {first} at step {steps[0]} to {final} at {steps[-1]}."
    return Chart(title, alt, [trace], shape, height=340)


def score_histogram(run: Run) -> Chart | None:
    """The histogram of scores in the pool and in the core set."""
    line = run.last_selection("score_histogram")
    histogram = line["score_histogram"] if line else {}
    if not line or not histogram.get("edges"):
        return None
    edges = histogram["edges"]
    middle = [(low + high) / 2 for low, high in pairwise(edges)]
    data = [
        dict(type="bar", x=middle, y=histogram[key], name=name, meta=dict(run=run.number), marker=dict(color=tint),
             hovertemplate=f"score %{{x:.3g}}: %{{y}} {name}<extra></extra>")
        for key, name, tint in (("all", "in the pool", MUTED), ("kept", "kept", color(run.number)))
    ]  # fmt: skip
    shape = layout(xaxis=axis("score (higher is better)"), yaxis=axis("examples"), barmode="overlay", bargap=0.05)
    summary = f"{count(sum(histogram['kept']))} of {count(sum(histogram['all']))} scored examples kept"
    reach = f"scores range from {edges[0]:.3g} to {edges[-1]:.3g}"
    alt = f"Scores of {run.name} at step {line['step']}: {summary}; {reach}."
    note = f"{summary}. The outermost percent on each side is in the end bins."
    return Chart("Scores of the last core set", alt, data, shape, note)


def coreset_sentence(run: Run) -> str:
    """The last core set in one sentence."""
    if not run.selections:
        return ""
    line = run.selections[-1]
    size = f"{count(line.get('kept'))} examples ({percent(line.get('kept_share'))} of the pool)"
    parts = [f"{size}, selected by {line.get('chosen_by', 'the selector')} at step {count(line.get('step'))}"]
    if known(line.get("overlap")):
        parts.append(f"{percent(line['overlap'])} of them were in the previous core set")
    if known(line.get("precision_of_kept")) and known(line.get("precision_of_pool")):
        pool = percent(line["precision_of_pool"])
        parts.append(f"pseudo-label precision {percent(line['precision_of_kept'])}, {pool} in the whole pool")
    if known(line.get("weight_largest")) and line["weight_largest"] != 1:
        parts.append(f"largest weight {decimal(line['weight_largest'], 2)}")
    sets = len(run.selections)
    return "; ".join(parts) + f". {sets} core set{'s' if sets > 1 else ''} in this run."


def learning_curve(run: Run) -> Chart | None:
    """The error of a linear head on parts of the labels, continued to twice as many; None where nothing was fitted."""
    curve = run.latest.get("learning_curve") or {}
    if not curve.get("sizes"):
        return None
    labels = curve["labels"]
    start = curve["sizes"][0]
    along = [start * (2 * labels / start) ** (step / POINTS) for step in range(POINTS + 1)]
    fitted = [curve["floor"] + curve["factor"] * count ** -curve["exponent"] for count in along]
    ends = [curve["now"], curve["at_double"]]
    above, below = ([abs(end[side] - end["value"]) for end in ends] for side in ("high", "low"))
    hover = "%{x:.0f} labels: %{y:.1f} %<extra></extra>"
    shared = dict(type="scatter", meta=dict(run=run.number), hovertemplate=hover)
    data: list[Trace] = [
        dict(**shared, mode="lines", name="fitted", x=along, y=scaled(fitted), line=dict(color=MUTED, dash="dot")),
        dict(**shared, mode="markers", name="measured on the other labels", x=curve["sizes"], y=scaled(curve["errors"]),
             marker=dict(color=color(run.number))),
        dict(**shared, mode="markers", name="now and with twice the labels", x=[labels, 2 * labels],
             y=scaled([end["value"] for end in ends]), marker=dict(color=color(run.number + 1)),
             error_y=dict(type="data", array=scaled(above), arrayminus=scaled(below))),
    ]  # fmt: skip
    shape = layout("labels", "percent")
    shape["yaxis"]["rangemode"] = "tozero"
    return Chart("Error of a linear head by number of labels", f"{run.name}: {curve['text']}.", data, shape, height=260)
