"""Chart: a Plotly figure with its title, what to see in it, and the sentence read to those who cannot see it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..format import label
from ..read import Run

COLORS = ("#3b82f6", "#f0701a", "#10a37f", "#a463f2", "#e0457b", "#0ea5b7", "#b58900", "#7c8798", "#84a300", "#c2410c")


RIGHT, WRONG, QUIET = COLORS[0], COLORS[1], "rgba(128,134,148,0.45)"


DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")


Trace = dict[str, Any]


class Chart(NamedTuple):
    """A figure and its words. A trace's `meta.run` says whose it is; `meta.steps` and `.seconds` are its two x axes."""

    title: str
    alt: str
    data: list[Trace]
    layout: dict[str, Any]
    note: str = ""
    height: int = 300


def color(number: int) -> str:
    """The color of a run, or of a line where there is but one run."""
    return COLORS[number % len(COLORS)]


def layout(x: str = "", y: str = "", **rest: Any) -> dict[str, Any]:
    """What the charts share; colors of paper, text and grid come from the page, which knows light from dark."""
    shared = dict(margin=dict(l=8, r=12, t=8, b=8), hovermode="closest", showlegend=True, dragmode="zoom",
                  legend=dict(orientation="h", x=0, y=1.02, yanchor="bottom"), barmode="group", bargap=0.2)  # fmt: skip
    axes = dict(xaxis=axis(x), yaxis=axis(y))
    return {**shared, **axes, **rest}


def axis(title: str = "", **rest: Any) -> dict[str, Any]:
    """One axis."""
    named = dict(title=dict(text=title, standoff=8)) if title else {}
    return dict(**named, automargin=True, **rest)


def class_axis(classes: Sequence[str], title: str = "", most: int = 26, **rest: Any) -> dict[str, Any]:
    """An axis of class numbers under class names; of very many classes only some are named."""
    shown = range(0, len(classes), -(-len(classes) // most) or 1)
    return axis(title, tickmode="array", tickvals=list(shown), ticktext=[label(classes[i], 14) for i in shown],
                range=[-0.5, len(classes) - 0.5], **rest)  # fmt: skip


def all_classes(runs: Sequence[Run]) -> list[str]:
    """The classes of several runs, each once."""
    return list(dict.fromkeys(name for run in runs for name in run.classes))
