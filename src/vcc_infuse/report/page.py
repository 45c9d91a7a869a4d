"""The page: sections, charts and the plotting library in one HTML file that asks nothing of the network."""

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
from ..files import plain, write_atomic
from .chart import COLOURS, Chart
from .configuration import configuration
from .headline import headline
from .read import Run, read_runs
from .sections import Section, sections
from .themes import THEMES


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
        style=asset("page.css") + "".join(f".c{i}{{--run:{tint}}}" for i, tint in enumerate(COLOURS)),
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
    name = f'<i class="dot c{run.number % len(COLOURS)}"></i>{html.escape(run.name)}'
    return f'<details data-run="{run.number}"{" open" if is_open else ""}><summary>{name}</summary>{content}</details>'


def toggles(runs: Sequence[Run]) -> str:
    """A box for each run, which shows or hides it in all charts at once."""
    if len(runs) == 1:
        return ""
    boxes = "".join(
        f'<label class="c{run.number % len(COLOURS)}"><input type="checkbox" value="{run.number}" checked>'
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
    text = json.dumps(plain(value), allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def asset(name: str) -> str:
    """A file beside this one."""
    return (files(__package__) / name).read_text(encoding="utf-8")


@functools.cache
def plotly_library() -> str:
    """Plotly's own script, packed to a third of its size; the page unpacks it."""
    script = (files("plotly") / "package_data" / "plotly.min.js").read_bytes()
    return base64.b64encode(gzip.compress(script, 6, mtime=0)).decode()
