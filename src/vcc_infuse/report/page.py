"""HTML through Jinja2 templates with autoescape: class and file names come from outside and must stay text."""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined, UndefinedError

from ..errors import OptionError
from ..utils.io import MALFORMED, nan_to_none, reading, write_text
from .charts.chart import COLORS
from .headline import cards, columns
from .read import Run, read_runs
from .sections import sections


@functools.cache
def environment() -> Environment:
    """The one environment: templates under `report/templates`, every value escaped, an unknown name is an error."""
    found = Environment(
        loader=PackageLoader("vcc_infuse.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # For `tojson`, which also escapes <, > and &, so that no value can end the script element it stands in.
    found.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    found.filters["policy_hash"] = policy_hash
    return found


def policy_hash(text: str) -> str:
    """The source expression by which a Content-Security-Policy allows one inline script or style, and no other."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def render(template_name: str, **values: Any) -> str:
    """The text of a template with its values filled in."""
    return environment().get_template(template_name).render(**values)


FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif"


def theme(text: str, grid: str, card: str, scale: list[str]) -> dict[str, Any]:
    """A Plotly template: colors of text, grid, hover labels and heatmaps. The background is that of the page."""
    axis = dict(gridcolor=grid, linecolor=grid, zerolinecolor=grid, tickcolor=grid, title=dict(font=dict(size=12)))
    clear = "rgba(0,0,0,0)"
    return {
        "layout": dict(
            paper_bgcolor=clear, plot_bgcolor=clear, xaxis=axis, yaxis=axis,
            font=dict(family=FONT, size=12, color=text),
            hoverlabel=dict(bgcolor=card, bordercolor=grid, font=dict(color=text, family=FONT)),
            coloraxis=dict(colorscale=[[i / (len(scale) - 1), color] for i, color in enumerate(scale)]),
            legend=dict(bgcolor=clear), modebar=dict(bgcolor=clear, color="#8a93a3", activecolor=text),
        )
    }  # fmt: skip


THEMES = {
    "light": theme("#3d4451", "#e6e8ec", "#ffffff", ["#f4f6fa", "#bcd3fb", "#5b93f5", "#1d4fc4", "#12306f"]),
    "dark": theme("#c3c9d4", "#2c323d", "#1b2029", ["#1b212c", "#1d3a74", "#2f63c9", "#6fa3ff", "#d6e5ff"]),
}


def write_report(folders: Sequence[str | Path], output: str | Path) -> Path:
    """Read the run folders and write the page; returns its path."""
    text, path = safe_page(read_runs([Path(folder) for folder in folders])), Path(output)
    try:
        # A file name may hold bytes that are not UTF-8.
        write_text(path, text, errors="replace")
    except OSError as fault:
        reason = f"it cannot be written: {fault.strerror}"
        raise OptionError("output", str(path), "must be a file in a writable folder", reason) from fault
    return path


def safe_page(runs: Sequence[Run]) -> str:
    """The page; values that no chart can show, because a file was changed, are blamed on the run that holds them."""
    try:
        return page(runs)
    except (*MALFORMED, UndefinedError):
        for run in runs:
            with reading(run.name, "some of its metrics are not those of a run; restore its files from a copy"):
                try:
                    page([run])
                except UndefinedError as fault:  # a template met a number where it expected a table
                    raise TypeError(str(fault)) from fault
        raise


def page(runs: Sequence[Run]) -> str:
    """The page as text."""
    single = len(runs) == 1
    shown = sections(runs)
    charts = [chart for section in shown for chart in section.all_charts]
    data = {"charts": [{"data": chart.data, "layout": chart.layout} for chart in charts], "themes": THEMES}
    return render(
        "page.html",
        runs=runs,
        single=single,
        title=f"{runs[0].name}: report" if single else f"{len(runs)} runs compared",
        heading=runs[0].name if single else f"{len(runs)} runs compared",
        colors=COLORS,
        cards=cards(runs[0]),
        columns=columns(runs),
        sections=shown,
        numbers={chart: number for number, chart in enumerate(charts)},
        data=nan_to_none(data),
        style=asset("page.css") + run_colors(),
        script=asset("page.js"),
        plotly=plotly_library(),
    )


def asset(name: str) -> str:
    """The text of a file in this folder."""
    return (files(__package__) / name).read_text(encoding="utf-8")


def run_colors() -> str:
    """A style rule per run."""
    return "".join(f".c{number}{{--run:{color}}}" for number, color in enumerate(COLORS))


class Library(NamedTuple):
    """A script, compressed to a third of its size, and what allows it to run once page.js has decompressed it."""

    compressed: str
    policy: str


@functools.cache
def plotly_library() -> Library:
    """Plotly's script."""
    script = (files("plotly") / "package_data" / "plotly.min.js").read_bytes()
    return Library(base64.b64encode(gzip.compress(script, 6, mtime=0)).decode(), policy_hash(script.decode()))
