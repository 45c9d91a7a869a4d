"""The three scales, and the options of a dataset and a number of labels at each.

`smoke` is for tests: digits stand in for every dataset and a run has four steps. `frozen` trains heads on features of
a pretrained network. `paper` is the full protocol, for GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from vcc_infuse.training.presets import PAPER_REFRESH, preset

from .table import CORE, Row, TableColumn, all_five, names

Scale = Literal["smoke", "frozen", "paper"]
SCALES: tuple[Scale, ...] = ("smoke", "frozen", "paper")
SMOKE: dict[str, Any] = {
    "steps": 4, "eval_every": 2, "batch_size": 8, "unlabeled_ratio": 2, "model": "SmallConv", "model.width": 4,
}  # fmt: skip
# Options that `frozen` adds to those of the preset of that name.
FROZEN: dict[str, Any] = {
    "model": "Timm", "model.name": "tf_efficientnet_lite0", "model.input_size": 96, "bank.weak": 2, "bank.strong": 4,
}  # fmt: skip
FROZEN_BY_DATASET: dict[str, dict[str, Any]] = {
    "fashion_mnist": {"subset.train": 5000, "subset.test": 2000},  # as many as a laptop embeds in minutes
    "svhn": {"flip": False},
}
FROZEN_SETTINGS = (
    ("cifar10", 40), ("cifar10", 250), ("cifar10", 4000), ("cifar100", 400), ("cifar100", 2500), ("stl10", 40),
    ("svhn", 250), ("svhn", 1000), ("fashion_mnist", 100),
)  # fmt: skip
"""Every dataset and number of labels of the scale `frozen`."""
ABLATION_SETTINGS = (("cifar100", 2500), ("cifar10", 250), ("stl10", 40))
"""Those of its ablations: the paper's, and two in which FixMatch is better than the linear probe."""
SIMMATCH_SETTINGS = (("stl10", 40), ("cifar10", 250))
"""Where SimMatch is run: its memory of labeled and unlabeled features makes it the slowest method on a bank."""
DATASET_NAMES = {
    "digits": "digits", "fashion_mnist": "Fashion-MNIST", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100",
    "svhn": "SVHN", "stl10": "STL-10",
}  # fmt: skip


def run_options(scale: Scale, data: str, labels: int | None, **more: Any) -> dict[str, Any]:
    """The training options of a dataset at a scale."""
    shown = {} if labels is None else {"labels": labels}
    if scale == "smoke":
        return {"data": "digits", **shown, **SMOKE, **more}
    common = frozen_options(data) if scale == "frozen" else paper_options(data)
    return {"data": data, **shown, **common, **more}


def frozen_options(data: str) -> dict[str, Any]:
    """The preset `frozen`, evaluated once: a run takes seconds."""
    options = {name: value for name, value in preset("frozen", data).items() if name not in ("model", "bank")}
    return {**options, "eval_every": options["steps"], **FROZEN, **FROZEN_BY_DATASET.get(data, {})}


def paper_options(data: str) -> dict[str, Any]:
    """The paper's protocol, written out: its network and weight decay depend on the data."""
    options = dict(preset("paper", data))
    model = options.pop("model")
    arguments = {f"model.{name}": value for name, value in model["init_args"].items()}
    flip = {"flip": False} if data == "svhn" else {}
    return {**options, "model": model["class_path"].rpartition(".")[2], **arguments, **flip}


def column_name(data: str, labels: int, keep: float | None = None) -> str:
    """The name of a column, such as `CIFAR-10, 250 labels, 40 % kept`."""
    kept = "" if keep is None else f", {100 * keep:.0f} % kept"
    return f"{DATASET_NAMES[data]}, {labels} labels{kept}"


def column(
    scale: Scale, data: str, labels: int, keep: float | None = None, rows: tuple[str, ...] | None = None
) -> TableColumn:
    """A dataset, a number of labels and the fraction that selectors keep; at smoke scale 40 labels of digits."""
    kept = {} if keep is None else {"selector.keep": keep}
    if scale == "smoke":
        return TableColumn(column_name("digits", 40, keep), {**run_options(scale, data, 40), **kept}, None, rows)
    name, options = column_name(data, labels, keep), {**run_options(scale, data, labels), **kept}
    if scale == "paper":
        return TableColumn(name, {**options, "selector.every": PAPER_REFRESH}, name, rows, "paper")
    return TableColumn(name, options, name, rows)


def core_names(data: str, labels: int) -> tuple[str, ...]:
    """The rows of FixMatch, FlexMatch and SimMatch that a column of the scale `frozen` has, in all tables."""
    fixmatch, flexmatch, simmatch = (names(all_five(name, {})) for name in CORE)
    small = (data, labels) in SIMMATCH_SETTINGS
    return *fixmatch, *(flexmatch if small or data == "cifar100" else flexmatch[:1]), *(simmatch if small else ())


def default_column(scale: Scale) -> TableColumn:
    """CIFAR-100 with 2,500 labels, as in most of the paper's tables."""
    return column(scale, "cifar100", 2500)


def ablation_columns(scale: Scale, rows: Mapping[str, Sequence[Row]]) -> tuple[TableColumn, ...]:
    """The paper's column; at frozen scale two more. `rows` has those of each base method.

    FlexMatch is the base in the paper's column and FixMatch in the others, where it learns from fewer pseudo labels.
    """
    if scale != "frozen":
        return (default_column(scale),)
    bases = {"cifar100": "FlexMatch"}
    return tuple(column(scale, *pair, rows=names(rows[bases.get(pair[0], "FixMatch")])) for pair in ABLATION_SETTINGS)


def ablation_bases(scale: Scale) -> tuple[str, ...]:
    """The base methods of an ablation."""
    return ("FlexMatch", "FixMatch") if scale == "frozen" else ("FlexMatch",)
