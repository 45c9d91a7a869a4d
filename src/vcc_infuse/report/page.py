"""The page: run folders in, one self-contained HTML file out.

Jinja2 escapes every value, because class and file names come from outside and must stay text; a content security policy
allows only the page's own scripts and styles.
"""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, UndefinedError

from ..errors import OptionError
from ..utils.io import MALFORMED, nan_to_none, reading, write_text
from .charts.chart import COLORS
from .headline import cards, columns
from .read import Run, read_runs
from .sections import sections

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif"
CLEAR = "rgba(0,0,0,0)"
# Colors of text, grid and hover labels, and the scale of heatmaps.
PALETTES = {
    "light": ("#3d4451", "#e6e8ec", "#ffffff", ("#f4f6fa", "#bcd3fb", "#5b93f5", "#1d4fc4", "#12306f")),
    "dark": ("#c3c9d4", "#2c323d", "#1b2029", ("#1b212c", "#1d3a74", "#2f63c9", "#6fa3ff", "#d6e5ff")),
}


def write_report(folders: Sequence[str | Path], output: str | Path) -> Path:
    """Write one self-contained page about a run, or a comparison of several.

    Args:
        folders: run folders, also of unfinished runs.
        output: the HTML file to write.

    Returns:
        The path of the page.

    >>> write_report(["runs/a", "runs/b"], "comparison.html")  # doctest: +SKIP
    """
    path = Path(output)
    text = safe_page(read_runs([Path(folder) for folder in folders]))
    try:
        # A file name may hold bytes that are not UTF-8.
        write_text(path, text, errors="replace")
    except OSError as fault:
        reason = f"it cannot be written: {fault.strerror}"
        raise OptionError("output", str(path), "must be a file in a writable folder", reason) from fault
    return path


def safe_page(runs: Sequence[Run]) -> str:
    """The page; if a changed file holds values that no chart can show, the error names its run."""
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
    heading = runs[0].name if single else f"{len(runs)} runs compared"
    shown = sections(runs)
    charts = [chart for section in shown for chart in section.all_charts]
    themes = {name: theme(*palette) for name, palette in PALETTES.items()}
    data = {"charts": [{"data": chart.data, "layout": chart.layout} for chart in charts], "themes": themes}
    return render(
        "page.html",
        runs=runs,
        single=single,
        title=f"{heading}: report" if single else heading,
        heading=heading,
        colors=COLORS,
        cards=cards(runs[0]),
        columns=columns(runs),
        sections=shown,
        numbers={chart: number for number, chart in enumerate(charts)},
        data=nan_to_none(data),
        style=asset("page.css") + "".join(f".c{i}{{--run:{color}}}" for i, color in enumerate(COLORS)),
        script=asset("page.js"),
        plotly=plotly_library(),
    )


def asset(name: str) -> str:
    """The text of a file in this folder."""
    return (files(__package__) / name).read_text(encoding="utf-8")


def theme(text: str, grid: str, card: str, scale: Sequence[str]) -> dict[str, Any]:
    """A Plotly template in the colors of a palette; the background is that of the page."""
    axis = dict(gridcolor=grid, linecolor=grid, zerolinecolor=grid, tickcolor=grid, title=dict(font=dict(size=12)))
    layout = dict(
        paper_bgcolor=CLEAR,
        plot_bgcolor=CLEAR,
        xaxis=axis,
        yaxis=axis,
        font=dict(family=FONT, size=12, color=text),
        hoverlabel=dict(bgcolor=card, bordercolor=grid, font=dict(color=text, family=FONT)),
        coloraxis=dict(colorscale=[[i / (len(scale) - 1), color] for i, color in enumerate(scale)]),
        legend=dict(bgcolor=CLEAR),
        modebar=dict(bgcolor=CLEAR, color="#8a93a3", activecolor=text),
    )
    return {"layout": layout}


@functools.cache
def plotly_library() -> dict[str, str]:
    """Plotly's script, compressed to a third of its size, and the policy that allows page.js to run it."""
    script = (files("plotly") / "package_data" / "plotly.min.js").read_bytes()
    compressed = base64.b64encode(gzip.compress(script, 6, mtime=0)).decode()
    return {"compressed": compressed, "policy": policy_hash(script.decode())}


@functools.cache
def environment() -> Environment:
    """The templates under `report/templates`: every value is escaped, an unknown name is an error."""
    templates = Environment(
        loader=PackageLoader("vcc_infuse.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # `tojson` also escapes <, > and &, so that no value can end the script element that it stands in.
    templates.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    templates.filters["policy_hash"] = policy_hash
    return templates


def policy_hash(text: str) -> str:
    """The source expression by which a content security policy allows one inline script or style, and no other."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def render(template_name: str, **values: Any) -> str:
    """The text of a template with its values filled in."""
    return environment().get_template(template_name).render(**values)
