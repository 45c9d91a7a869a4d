"""Plotly templates for a light and a dark page."""

from __future__ import annotations

import base64
import functools
import gzip
import html
import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from ..errors import UserError
from ..utils.io import nan_to_none, write_atomic
from .charts.chart import COLORS, Chart
from .headline import headline
from .read import Run, read_runs
from .sections import Section, sections

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif"


def theme(text: str, grid: str, card: str, scale: list[str]) -> dict[str, Any]:
    """Colors of text, grid, hover labels and maps; the paper is the page's own."""
    axis = dict(gridcolor=grid, linecolor=grid, zerolinecolor=grid, tickcolor=grid, title=dict(font=dict(size=12)))
    clear = "rgba(0,0,0,0)"
    return {
        "layout": dict(
            paper_bgcolor=clear, plot_bgcolor=clear, xaxis=axis, yaxis=axis,
            font=dict(family=FONT, size=12, color=text),
            hoverlabel=dict(bgcolor=card, bordercolor=grid, font=dict(color=text, family=FONT)),
            coloraxis=dict(colorscale=[[i / (len(scale) - 1), tint] for i, tint in enumerate(scale)]),
            legend=dict(bgcolor=clear),
        )
    }  # fmt: skip


THEMES = {
    "light": theme("#3d4451", "#e6e8ec", "#ffffff", ["#f4f6fa", "#bcd3fb", "#5b93f5", "#1d4fc4", "#12306f"]),
    "dark": theme("#c3c9d4", "#2c323d", "#1b2029", ["#1b212c", "#1d3a74", "#2f63c9", "#6fa3ff", "#d6e5ff"]),
}


def configuration(runs: Sequence[Run]) -> str:
    """One folded part a run."""
    return f'<section id="configuration"><h2>Configuration and versions</h2>{"".join(map(part, runs))}</section>'


def part(run: Run) -> str:
    """config.yaml as it is, and a table of versions."""
    versions = run.figures.get("versions") or {}
    rows = "".join(
        f"<tr><th scope=row>{cell(name)}</th><td>{cell(value)}</td></tr>" for name, value in versions.items()
    )
    table = f'<table class="versions"><tbody>{rows}</tbody></table>' if rows else ""
    number = run.number % 10
    return (
        f'<details data-run="{run.number}"><summary><i class="dot c{number}"></i>{cell(run.name)}</summary>'
        f"{table}<pre>{cell(run.config)}</pre></details>"
    )


def cell(value: object) -> str:
    """Any value as text."""
    return html.escape(str(value))


def write_report(folders: Sequence[str | Path], output: str | Path) -> Path:
    """Read the run folders and write the page; returns where it is."""
    text, path = render(read_runs([Path(folder) for folder in folders])), Path(output)
    try:
        # A file name may hold bytes that are no text.
        write_atomic(path, lambda temporary: temporary.write_text(text, encoding="utf-8", errors="replace"))
    except OSError as fault:
        raise UserError(f"-o {path} cannot be written: {fault.strerror}; give a file in a folder that can") from fault
    return path


def render(runs: Sequence[Run]) -> str:
    """The page as text."""
    charts: list[Chart] = []
    body = "".join(section_html(section, len(runs) == 1, charts) for section in sections(runs))
    title = f"{runs[0].name}: report" if len(runs) == 1 else f"{len(runs)} runs compared"
    return Template(asset("page.html")).substitute(
        title=html.escape(title),
        heading=html.escape(runs[0].name if len(runs) == 1 else title),
        style=asset("page.css") + "".join(f".c{i}{{--run:{tint}}}" for i, tint in enumerate(COLORS)),
        toggles=toggles(runs),
        unfinished="".join(map(unfinished, runs)),
        headline=headline(runs),
        body=body + configuration(runs),
        data=script_json({"charts": [chart_json(chart) for chart in charts], "themes": THEMES}),
        script=asset("page.js"),
        plotly=plotly_library(),
    )


def section_html(section: Section, single: bool, charts: list[Chart]) -> str:
    """One section; its charts join `charts`, by whose numbers the page finds them."""
    if single:
        inner = "".join(markup for *_, markup in section.own)
        inner += figures([*section.charts, *(chart for _, own, _ in section.own for chart in own)], charts)
    else:
        inner = figures(section.charts, charts)
        parts = [(run, markup + figures(own, charts)) for run, own, markup in section.own]
        inner += "".join(details(run, part, is_open=run.number == 0) for run, part in parts if part)
    if not inner:
        inner = f'<p class="absent">{section.absent}</p>' if section.absent else ""
    switch = SWITCH if section.key == "curves" and section.charts else ""
    return f'<section id="{section.key}"><h2>{section.title}</h2>{switch}{inner}</section>' if inner else ""


SWITCH = (
    '<fieldset class="switch"><legend>Horizontal axis</legend>'
    '<label><input type="radio" name="axis" value="steps" checked>steps</label>'
    '<label><input type="radio" name="axis" value="seconds">time</label></fieldset>'
)


def figures(own: Sequence[Chart], charts: list[Chart]) -> str:
    """A place for each chart, with the sentence that stands for it."""
    cells = []
    for chart in own:
        note = f"<small>{html.escape(chart.note)}</small>" if chart.note else ""
        cells.append(
            f'<figure role="img" aria-label="{html.escape(chart.alt)}" data-chart="{len(charts)}"><figcaption>'
            f"{html.escape(chart.title)}{note}</figcaption>"
            f'<div class="plot" style="height:{chart.height}px"></div></figure>'
        )
        charts.append(chart)
    return f'<div class="charts">{"".join(cells)}</div>' if cells else ""


def details(run: Run, content: str, is_open: bool) -> str:
    """What belongs to one run, folded away."""
    name = f'<i class="dot c{run.number % len(COLORS)}"></i>{html.escape(run.name)}'
    return f'<details data-run="{run.number}"{" open" if is_open else ""}><summary>{name}</summary>{content}</details>'


def toggles(runs: Sequence[Run]) -> str:
    """A box for each run, which shows or hides it in all charts at once."""
    if len(runs) == 1:
        return ""
    boxes = "".join(
        f'<label class="c{run.number % len(COLORS)}"><input type="checkbox" value="{run.number}" checked>'
        f"{html.escape(run.name)}</label>"
        for run in runs
    )
    return f'<fieldset class="toggles"><legend>Runs shown</legend>{boxes}</fieldset>'


def unfinished(run: Run) -> str:
    """A warning where a run has no summary."""
    if run.summary is not None:
        return ""
    until = f"figures up to step {run.metrics[-1].get('step')}" if run.metrics else "no evaluation yet"
    return f'<p class="warning" data-run="{run.number}">{html.escape(run.name)} is unfinished: {until}.</p>'


def chart_json(chart: Chart) -> dict[str, Any]:
    """What the page needs to draw a chart."""
    return {"data": chart.data, "layout": chart.layout}


def script_json(value: Any) -> str:
    """JSON that cannot end the script element it stands in, whatever a class is called."""
    text = json.dumps(nan_to_none(value), allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def asset(name: str) -> str:
    """A file beside this one."""
    return (files(__package__) / name).read_text(encoding="utf-8")


@functools.cache
def plotly_library() -> str:
    """Plotly's own script, packed to a third of its size; the page unpacks it."""
    script = (files("plotly") / "package_data" / "plotly.min.js").read_bytes()
    return base64.b64encode(gzip.compress(script, 6, mtime=0)).decode()
