"""The three scales, and what a dataset and a number of labels mean at each.

`smoke` is for tests: digits stand in for every dataset and a run is four steps. `cpu` is a small version on
subsets of the same datasets. `paper` is the full protocol, for GPUs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from ..training.presets import preset
from .table import Column

Scale = Literal["smoke", "cpu", "paper"]


SCALES: tuple[Scale, ...] = ("smoke", "cpu", "paper")


SMOKE = {
    "steps": 4, "epochs": 2, "eval_every": 1, "batch": 8, "ratio": 2, "model": "SmallConv", "model.width": 4,
}  # fmt: skip


CPU = {
    "size": 16, "steps": 1000, "epochs": 20, "eval_every": 5, "batch": 32, "ratio": 4, "lr": 0.03, "model": "SmallConv",
    "model.width": 16,
}  # fmt: skip


SPECIAL: dict[str, dict[str, Any]] = {
    "digits": {"size": 8, "steps": 600, "ratio": 5, "model.width": 24},
    "fashion_mnist": {"steps": 600, "lr": 0.06},
    "svhn": {"flip": False},  # a mirrored digit is another sign
}


NAMES = {
    "digits": "digits", "fashion_mnist": "Fashion-MNIST", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100",
    "svhn": "SVHN", "stl10": "STL-10",
}  # fmt: skip


def setting(scale: Scale, data: str, labels: int | None, **more: Any) -> dict[str, Any]:
    """Training options of a dataset at a scale."""
    shown = {} if labels is None else {"labels": labels}
    if scale == "smoke":
        return {"data": "digits", **shown, **SMOKE, **more}
    common = CPU | SPECIAL.get(data, {}) if scale == "cpu" else full(data)
    return {"data": data, **shown, **common, **more}


def full(data: str) -> dict[str, Any]:
    """The paper's protocol, spelt out: its network and weight decay depend on the data."""
    options = dict(preset("paper", data))
    model = options.pop("model")
    depth = {f"model.{name}": value for name, value in model["init_args"].items()}
    mirror = {"flip": False} if data == "svhn" else {}
    return {**options, "model": model["class_path"].rpartition(".")[2], **depth, "batch": 64, **mirror}


def column_name(data: str, labels: int, keep: float | None = None) -> str:
    """As a reader would say it."""
    share = "" if keep is None else f", {100 * keep:.0f} % kept"
    return f"{NAMES[data]}, {labels} labels{share}"


def column(
    scale: Scale, data: str, labels: int, keep: float | None = None, rows: tuple[str, ...] | None = None
) -> Column:
    """A dataset, a number of labels and, for selectors, a share; at smoke scale 40 labels of digits instead."""
    share = {} if keep is None else {"selector.keep": keep}
    if scale == "smoke":
        return Column(column_name("digits", 40, keep), {**setting(scale, data, 40), **share}, None, rows)
    name = column_name(data, labels, keep)
    return Column(name, {**setting(scale, data, labels), **share}, name, rows)


def small_or_full(scale: Scale) -> Column:
    """CIFAR-100 with 2,500 labels; at cpu scale CIFAR-10 with 250, where FlexMatch beats Supervised so early."""
    if scale != "cpu":
        return column(scale, "cifar100", 2500)
    return replace(column(scale, "cifar10", 250), stands_for=column_name("cifar100", 2500))


def ablation(scale: Scale) -> tuple[str, Column]:
    """The base and the column of an ablation; at cpu scale digits, for so early FlexMatch trusts any pseudo label."""
    if scale == "cpu":
        return "FixMatch", column(scale, "digits", 20)
    return "FlexMatch", small_or_full(scale)
