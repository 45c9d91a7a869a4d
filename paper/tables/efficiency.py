"""The paper's efficiency table: VCC and INFUSE together, error and training time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..scales import Scale, column, column_name
from ..table import Row, Table, TableColumn, method, names, paper_numbers, with_vcc
from .coreset import LAZY, selector_options, with_refresh

PAPER = paper_numbers(
    """
    Dash                 27.15
    MPL                  27.71
    FixMatch             28.03
    FlexMatch            26.49
    VCC-FlexMatch        25.26
    VCC-INFUSE-FlexMatch 25.41
    """,
    (column_name("cifar100", 2500),),
)
KEEP = 0.4
OTHERS = ("Dash", "MPL", "FixMatch")
METRICS = ("error", "steps", "seconds_train", "seconds_select", "hours")
CPU = ("seconds_cpu", "cpu")
"""Of runs on images; other work on the machine lengthens the wall time and hardly these."""
FROZEN = (
    "Seconds are measured: run this table by itself, with --jobs 1 and --cells of its own, so that its rows take turns "
    "on the same machine. They are those of training a head on a finished bank, where the network costs nothing: what "
    "VCC adds looks large beside it, and a core set saves no pass of the network. Embedding is done once, for all "
    "rows; a lazy bank embeds the plain view of every image and the other views of the core sets alone. "
    "results/embed.md has what both take."
)


def table(scale: Scale) -> Table:
    """Time as a ratio to the base. The paper's ratios are 1.132, 0.516 and, with VCC in both runs, 0.456."""
    rows = (*(method(name, PAPER[name]) for name in OTHERS), *efficient("FlexMatch", scale))
    column = timed_column(scale, *(("mnist", 40) if scale == "scratch" else ("cifar100", 2500)))
    title = "Error and training time"
    if scale != "frozen":
        return Table("efficiency", title, rows, (column,), METRICS + CPU)
    fixmatch = efficient("FixMatch", scale)
    other = replace(timed_column(scale, "cifar10", 250), rows=names(fixmatch))
    columns = (replace(column, rows=names(rows)), other)
    return Table("efficiency", title, (*rows, *fixmatch[1:]), columns, METRICS, FROZEN)


def efficient(base: str, scale: Scale) -> tuple[Row, ...]:
    """A method alone, with lazy strong views, with core sets, and with VCC."""
    kept = {"selector.keep": KEEP}
    infuse: dict[str, Any] = {"algorithm": base, **selector_options("INFUSE", scale), **kept}
    both = {**infuse, "calibrator": "VCC"}
    name = f"VCC-INFUSE-{base}"
    random = {"algorithm": base, "selector": "RandomOnline", **kept}
    return (
        method(base, PAPER.get(base)),
        Row(f"{base}, lazy", {"algorithm": base, **LAZY}, base),
        Row(f"{base} + RandomOnline, 40 % kept", random, base),
        Row(f"{base} + INFUSE, 40 % kept", infuse, base),
        with_vcc(base, PAPER.get(f"VCC-{base}")),
        Row(f"{name}, 40 % kept", both, base, PAPER.get(name, {})),
        Row(f"{name} against VCC-{base}", both, f"VCC-{base}", PAPER.get(name, {})),
    )


def timed_column(scale: Scale, data: str, labels: int) -> TableColumn:
    """A column in which core sets are chosen as often as in the core-set table."""
    plain = column(scale, data, labels)
    return with_refresh(plain, KEEP) if scale in ("frozen", "scratch") else plain
