"""The paper's core-set table, with two controls that the paper does not have: RandomOnline and FullShort."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..scales import Scale, column, column_name, with_steps
from ..table import Row, Table, TableColumn, method, paper_numbers

SETTINGS = tuple(
    (data, labels, keep)
    for data, labels, keeps in (
        ("cifar10", 250, (0.1, 0.2, 0.4)), ("cifar10", 4000, (0.4, 0.6)), ("cifar100", 2500, (0.1, 0.2, 0.4)),
        ("cifar100", 10000, (0.4, 0.6)), ("stl10", 250, (0.1, 0.2)), ("svhn", 250, (0.1, 0.2)),
    )
    for keep in keeps
)  # fmt: skip
PAPER = paper_numbers(
    """
    Random    9.12 6.87 6.51 5.26 5.01 31.55 31.11 28.86 23.19 22.51 16.62 14.37 3.85 4.65
    EarlyStop 7.47 6.03 6.85 4.86 4.52 29.21 28.85 27.30 23.03 22.61 16.31 13.20 2.93 3.08
    EL2N      8.55 7.47 6.70 4.94 4.54 31.55 31.27 28.42 23.12 22.21 16.27 12.92 3.66 3.61
    GradMatch 6.71 5.87 5.60 4.72 4.45 28.95 28.48 26.71 22.72 22.21 16.05 12.90 2.90 2.63
    RETRIEVE  6.60 6.02 5.48 4.68 4.41 28.75 28.34 26.68 22.56 22.18 16.05 12.90 2.90 2.63
    INFUSE    6.29 5.69 5.33 4.51 4.34 28.83 28.05 26.47 22.28 21.97 15.84 12.71 2.61 2.46
    Full      4.98 4.98 4.98 4.19 4.19 26.49 26.49 26.49 21.90 21.90  8.23  8.23 3.80 3.80
    """,
    tuple(column_name(*setting) for setting in SETTINGS),
)
SELECTORS = ("Random", "RandomOnline", "EarlyStop", "FullShort", "EL2N", "GradMatch", "RETRIEVE", "INFUSE")
TOP = {"strategy": "top", "quota": "none"}
VARIANTS: dict[str, dict[str, Any]] = {"best scores": TOP, "best as printed": {**TOP, "rank": "paper"}}
EXTRA_VARIANTS: dict[str, dict[str, Any]] = {
    "redrawn after each pass": {"resample_each_pass": True},
    "equal classes": {"quota": "equal"},
}
BASES = ("FlexMatch", "FixMatch")
KEEPS = (0.1, 0.2, 0.4)
FROZEN_SETTINGS, FROZEN_STEPS = (("cifar10", 250), ("cifar100", 2500), ("stl10", 40)), 1000
CPU_SETTINGS: tuple[tuple[str, int, int, tuple[str, ...]], ...] = (
    ("digits", 20, 1500, BASES),
    ("fashion_mnist", 100, 1500, BASES),
    ("cifar10", 250, 1500, BASES),
    ("svhn", 1000, 3000, ("FixMatch",)),  # FlexMatch fails there in so few steps
)


def table(scale: Scale) -> Table:
    """FlexMatch as in the paper; at cpu and frozen scale also FixMatch."""
    bases = BASES if scale in ("cpu", "frozen") else ("FlexMatch",)
    first = (method("Supervised"),) if scale == "cpu" else ()
    rows = (*first, *(row for base in bases for row in selections(base)))
    return Table("coreset", "Error with a part of the unlabeled examples", rows, columns(scale))


def selections(base: str) -> Iterator[Row]:
    """The full pool and every selector; differences are to RandomOnline, a new random subset at each refresh."""
    papers = PAPER if base == "FlexMatch" else {}
    control = title(base, "RandomOnline")
    yield Row(title(base, "full"), {"algorithm": base}, control, papers.get("Full", {}))
    for name in SELECTORS:
        reference = control if name != "RandomOnline" else None
        yield Row(title(base, name), {"algorithm": base, "selector": name}, reference, papers.get(name, {}))
    for name, options in (VARIANTS | EXTRA_VARIANTS).items():
        own = {f"selector.{key}": value for key, value in options.items()}
        yield Row(title(base, name), {"algorithm": base, "selector": "INFUSE", **own}, control)


def title(base: str, name: str) -> str:
    """The name of a row: a selector, a variant of INFUSE, or the full pool."""
    if name == "full":
        return f"{base}, full"
    return f"{base} + {name}" if name in SELECTORS else f"{base} + INFUSE, {name}"


def columns(scale: Scale) -> tuple[TableColumn, ...]:
    """The paper's fourteen; at other scales fewer, at cpu scale with the base methods that beat Supervised there."""
    if scale == "smoke":
        return (column(scale, "cifar10", 250, 0.4),)
    if scale == "paper":
        return tuple(column(scale, *setting) for setting in SETTINGS)
    if scale == "frozen":
        found = (column(scale, *setting, keep) for setting in FROZEN_SETTINGS for keep in KEEPS)
        return tuple(with_steps(each, FROZEN_STEPS) for each in found)
    return tuple(long_column(*setting, keep) for setting in CPU_SETTINGS for keep in KEEPS)


def long_column(data: str, labels: int, steps: int, bases: tuple[str, ...], keep: float) -> TableColumn:
    """A column at cpu scale with more steps than in other tables: a fraction of so few would learn nothing."""
    names = ("full", *SELECTORS, *VARIANTS, *(EXTRA_VARIANTS if keep == max(KEEPS) else ()))
    rows = ("Supervised", *(title(base, name) for base in bases for name in names))
    return with_steps(column("cpu", data, labels, keep, rows), steps)
