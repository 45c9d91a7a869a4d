"""The paper's long-tailed table, with two things the paper does not have: ABC, and VCC on top of another plug-in."""

from __future__ import annotations

from typing import Any

from ..scales import Scale, run_options
from ..table import Row, Table, TableColumn, method, paper_numbers

COLUMN = "CIFAR-10-LT"
PAPER = paper_numbers(
    """
    FixMatch  25.07
    FlexMatch 25.87
    SimMatch  61.54
    DASO      24.63
    DebiasPL  24.42
    DARP      22.93
    Adsh      21.88
    VCC       21.16
    """,
    (COLUMN,),
)
WITH_VCC = ("DARP", "ABC")
PLUGINS = ("DASO", "DebiasPL", "DARP", "Adsh", "ABC")
TAIL = {
    "smoke": {"first": 20, "gamma": 4, "beta": 0.5},
    "cpu": {"first": 300, "gamma": 30, "beta": 0.2},
    "frozen": {"first": 300, "gamma": 30, "beta": 0.2},
    "paper": {"first": 1000, "gamma": 100, "beta": 0.2},
}


def table(scale: Scale) -> Table:
    """At cpu scale 300 labels in the largest class and γ = 30: with γ = 100 the smallest would have three labels."""
    plugged = (Row(f"FixMatch + {p}", {"algorithm": p}, "FixMatch", PAPER.get(p, {})) for p in PLUGINS)
    both = (Row(f"FixMatch + {p} + VCC", {"algorithm": p, "calibrator": "VCC"}, f"FixMatch + {p}") for p in WITH_VCC)
    rows = (
        method("Supervised"),
        *(method(name, PAPER[name]) for name in ("FixMatch", "FlexMatch", "SimMatch")),
        *plugged,
        Row("FixMatch + VCC", {"algorithm": "FixMatch", "calibrator": "VCC"}, "FixMatch", PAPER["VCC"]),
        *both,
    )
    tail: dict[str, Any] = {f"long_tail.{key}": value for key, value in TAIL[scale].items()}
    columns = (TableColumn(COLUMN, run_options(scale, "cifar10", None, **tail), COLUMN),)
    metrics = ("error", "error_head", "error_tail", "ece_calibrated")
    return Table("imbalance", "Error on long-tailed CIFAR-10", rows, columns, metrics)
