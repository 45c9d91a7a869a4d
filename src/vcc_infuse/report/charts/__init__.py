"""Chart: a Plotly figure with its title, a note and a sentence for screen readers; what all charts share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..read import label

COLORS = ("#3b82f6", "#f0701a", "#10a37f", "#a463f2", "#e0457b", "#0ea5b7", "#b58900", "#7c8798", "#84a300", "#c2410c")
Trace = dict[str, Any]


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
