"""Charts of the training: curves over the evaluations, and what the core sets hold. page.js switches steps and time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ..format import count, decimal, known, label, percent, scaled
from ..read import Metrics, Run
from .calibration import is_calibrated
from .chart import DASHES, MUTED, Chart, Trace, all_classes, axis, color, layout
from .classes import class_bars

Line = tuple[str, str]
"""The key of a metric in metrics.jsonl, and its name on the page."""


def error_curve(runs: Sequence[Run]) -> Chart | None:
    """Test error, or error on the labels kept for validation."""
    kinds = " or ".join(sorted({run.measured_on for run in runs}))
    return curves(runs, f"{kinds} error".capitalize(), [("error", "error")])


def ece_curves(runs: Sequence[Run]) -> Chart | None:
    """ECE of the softmax confidence and, if any run has a calibrator, of the calibrated one."""
    calibrated = [("ece_calibrated", "calibrated")] if any(map(is_calibrated, runs)) else []
    return curves(runs, "Calibration error (ECE)", [*calibrated, ("ece", "softmax")])


def pseudo_label_curves(runs: Sequence[Run]) -> Chart | None:
    """The fraction of pseudo labels that are used, and the fraction of those that are correct."""
    keys = [("pseudo_label_precision", "precision"), ("pseudo_label_coverage", "coverage")]
    return curves(runs, "Pseudo labels", keys)


def loss_curves(runs: Sequence[Run]) -> Chart | None:
    """Every loss term, averaged since the previous evaluation."""
    terms = dict.fromkeys(key for run in runs for line in run.metrics for key in line if key.startswith("loss_"))
    keys = [(key, key.removeprefix("loss_").replace("_", " ")) for key in terms]
    return curves(runs, "Losses", keys, as_percent=False)


def curves(runs: Sequence[Run], title: str, keys: Sequence[Line], as_percent: bool = True) -> Chart | None:
    """One line per run and key. Several runs differ by color and keys by dash; keys of a single run by color."""
    single = len(runs) == 1
    data = []
    sentences = []
    for run in runs:
        for place, (key, name) in enumerate(keys):
            values = run.series(key)
            if any(map(known, values)):
                tint = color(place if single else run.number)
                full = name if single else f"{run.name} · {name}"
                data.append(curve(run, values, full, tint, 0 if single else place, as_percent))
                sentences.append(f"{name} of {run.name} {course(values, as_percent)}")
    if not data:
        return None
    dashes = " · ".join(f"{name} {DASHES[i % len(DASHES)]}" for i, (_, name) in enumerate(keys))
    shape = layout("steps", "percent" if as_percent else "loss", hovermode="x unified")
    shape["showlegend"] = single and len(keys) > 1
    shape["yaxis"]["rangemode"] = "tozero"
    note = "" if single or len(keys) == 1 else f"Line styles: {dashes}."
    return Chart(title, f"{title}: {'; '.join(sentences)}.", data, shape, note)


def curve(run: Run, values: Sequence[object], name: str, tint: str, dash: int, as_percent: bool) -> Trace:
    """One line, with its steps and its seconds."""
    steps = run.series("step")
    return dict(
        type="scatter", mode="lines+markers", name=label(name, 48), x=steps, connectgaps=False,
        y=scaled(values, 100 if as_percent else 1), hovertemplate="%{y:.2f} %" if as_percent else "%{y:.3f}",
        line=dict(color=tint, width=2, dash=DASHES[dash % len(DASHES)]), marker=dict(size=5),
        meta=dict(run=run.number, steps=steps, seconds=run.series("seconds")),
    )  # fmt: skip


def course(values: Sequence[object], as_percent: bool) -> str:
    """A curve in words."""
    seen = [value for value in values if known(value)]
    ends = [percent(v) if as_percent else decimal(v) for v in (seen[0], seen[-1])]
    return f"is {ends[1]}" if len(seen) == 1 else f"goes from {ends[0]} to {ends[1]}"


def kept_bars(runs: Sequence[Run]) -> Chart | None:
    """The share of each pseudo class that was kept."""
    values = [(run, kept_shares(run.last_selection("pool_share_per_class"))) for run in runs]
    return class_bars(all_classes(runs), values, "Kept share of each pseudo class")


def true_class_bars(runs: Sequence[Run]) -> Chart | None:
    """The true classes of the kept examples, where they are known; also for selectors without scores."""
    key = "kept_share_per_true_class"
    shares = [(run, (run.last_selection(key) or {}).get(key, [])) for run in runs]
    known_truth = [(run, values) for run, values in shares if sum(values) > 0]
    return class_bars(all_classes(runs), known_truth, "True classes in the core set", "Each run adds up to 100 %.")


def kept_shares(line: Metrics | None) -> list[float | None]:
    """The kept fraction of each class; None for a class that the pool does not have."""
    if line is None or not line.get("kept_share"):
        return []
    pairs = zip(line["kept_share_per_class"], line["pool_share_per_class"], strict=True)
    return [line["kept_share"] * kept / pool if pool else None for kept, pool in pairs]


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
