"""The configuration of each run, and the versions its figures depend on."""

from __future__ import annotations

import html
from collections.abc import Sequence

from .read import Run


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
