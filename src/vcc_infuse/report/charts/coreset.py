"""The last core set: the share kept of each class, and the scores."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from ..format import count, decimal, known, percent
from ..read import Metrics, Run
from .chart import MUTED, Chart, all_classes, axis, color, layout
from .classes import bars


def kept(runs: Sequence[Run]) -> Chart | None:
    """The share of each pseudo class that was kept."""
    values = [(run, kept_shares(run.last_selection("pool_share_per_class"))) for run in runs]
    return bars(all_classes(runs), values, "Kept share of each pseudo class")


def composition(runs: Sequence[Run]) -> Chart | None:
    """The true classes of the kept examples, where they are known; also for selectors without scores."""
    found = [(run, run.last_selection("kept_share_per_true_class")) for run in runs]
    values: list[tuple[Run, list[Any]]] = [(run, line["kept_share_per_true_class"]) for run, line in found if line]
    known_truth = [(run, shares) for run, shares in values if sum(shares) > 0]
    return bars(all_classes(runs), known_truth, "True classes in the core set", "Each run adds up to 100 %.")


def kept_shares(line: Metrics | None) -> list[float | None]:
    """The kept fraction of each class; None for a class that the pool does not have."""
    if line is None or not line.get("kept_share"):
        return []
    pairs = zip(line["kept_share_per_class"], line["pool_share_per_class"], strict=True)
    return [line["kept_share"] * mine / whole if whole else None for mine, whole in pairs]


def scores(run: Run) -> Chart | None:
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
    alt = (
        f"Scores of {run.name} at step {line['step']}: {summary}; scores range from {edges[0]:.3g} to {edges[-1]:.3g}."
    )
    note = f"{summary}. The outermost percent on each side is in the end bins."
    return Chart("Scores of the last core set", alt, data, shape, note)


def sentence(run: Run) -> str:
    """The last core set in one sentence."""
    if not run.selections:
        return ""
    line = run.selections[-1]
    parts = [f"{count(line.get('kept'))} examples ({percent(line.get('kept_share'))} of the pool), selected by "
             f"{line.get('chosen_by', 'the selector')} at step {count(line.get('step'))}"]  # fmt: skip
    if known(line.get("overlap")):
        parts.append(f"{percent(line['overlap'])} of them were in the previous core set")
    if known(line.get("precision_of_kept")) and known(line.get("precision_of_pool")):
        pool = percent(line["precision_of_pool"])
        parts.append(f"pseudo-label precision {percent(line['precision_of_kept'])}, {pool} in the whole pool")
    if known(line.get("weight_largest")) and line["weight_largest"] != 1:
        parts.append(f"largest weight {decimal(line['weight_largest'], 2)}")
    sets = len(run.selections)
    return "; ".join(parts) + f". {sets} core set{'s' if sets > 1 else ''} in this run."
