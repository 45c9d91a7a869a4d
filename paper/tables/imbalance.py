"""The paper's long-tailed table; beyond it ABC, the controls of VCC, and VCC on top of a wrapper."""

from __future__ import annotations

from typing import Any

from ..scales import Scale, run_options
from ..table import Row, Table, TableColumn, controls, method, paper_numbers

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
REMARK = (
    "FixMatch + ABC + VCC has no ECE of r: ABC answers with its balanced head, and the VAE learned from the other one."
)
WRAPPERS = ("DASO", "DebiasPL", "DARP", "Adsh", "ABC")
TAILS = {
    "smoke": ({"first": 20, "gamma": 4, "beta": 0.5},),
    "scratch": ({"first": 300, "gamma": 30, "beta": 0.2},),
    "frozen": ({"first": 150, "gamma": 30, "beta": 0.2}, {"first": 150, "gamma": 100, "beta": 0.2}),
    "paper": ({"first": 1000, "gamma": 100, "beta": 0.2},),
}


def table(scale: Scale) -> Table:
    """At frozen scale the smallest of the full classes has 750 images, so 150 labels; γ = 100 leaves one or two."""
    wrapped = (Row(f"FixMatch + {name}", {"algorithm": name}, "FixMatch", PAPER.get(name, {})) for name in WRAPPERS)
    both = (
        Row(
            f"FixMatch + {name} + VCC",
            {"algorithm": name, "calibrator": "VCC"},
            f"FixMatch + {name}",
            meaningless=("ece_calibrated",) if name == "ABC" else (),
        )
        for name in WITH_VCC
    )
    rows = (
        method("Supervised"),
        *(method(name, PAPER[name]) for name in ("FixMatch", "FlexMatch", "SimMatch")),
        *wrapped,
        Row("VCC-FixMatch", {"algorithm": "FixMatch", "calibrator": "VCC"}, "FixMatch", PAPER["VCC"]),
        *controls("FixMatch"),
        *both,
    )
    columns = tuple(tail_column(scale, tail) for tail in TAILS[scale])
    metrics = ("error", "error_head", "error_tail", "ece_calibrated")
    dataset = "Fashion-MNIST" if scale == "scratch" else "CIFAR-10"
    return Table("imbalance", f"Error on long-tailed {dataset}", rows, columns, metrics, REMARK)


def tail_column(scale: Scale, tail: dict[str, Any]) -> TableColumn:
    """A long tail of CIFAR-10; at scratch scale of Fashion-MNIST, on which a small network learns."""
    options = {f"long_tail.{key}": value for key, value in tail.items()}
    data = "fashion_mnist" if scale == "scratch" else "cifar10"
    stem = "Fashion-MNIST-LT" if scale == "scratch" else COLUMN
    name = stem if scale == "paper" else f"{stem}, γ = {tail['gamma']}"
    return TableColumn(name, run_options(scale, data, None, **options), COLUMN)
