"""The four scales, and the options of a dataset and a number of labels at each.

`smoke` is for tests: digits stand in for every dataset and a run has four steps. `cpu` is a small version on
subsets of the same datasets. `frozen` trains heads on features of a pretrained network. `paper` is the full protocol,
for GPUs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from ..training.presets import preset
from .table import TableColumn

Scale = Literal["smoke", "cpu", "frozen", "paper"]
SCALES: tuple[Scale, ...] = ("smoke", "cpu", "frozen", "paper")
SMOKE: dict[str, Any] = {
    "steps": 4, "eval_every": 2, "batch_size": 8, "unlabeled_ratio": 2, "model": "SmallConv", "model.width": 4,
}  # fmt: skip
CPU: dict[str, Any] = {
    "size": 16, "steps": 1000, "eval_every": 250, "batch_size": 32, "unlabeled_ratio": 4, "lr": 0.03,
    "model": "SmallConv", "model.width": 16,
}  # fmt: skip
CPU_BY_DATASET: dict[str, dict[str, Any]] = {
    "digits": {"size": 8, "steps": 600, "eval_every": 150, "unlabeled_ratio": 5, "model.width": 24},
    "fashion_mnist": {"steps": 600, "eval_every": 150, "lr": 0.06},
    "svhn": {"flip": False},  # a mirrored digit is not a digit any more
}
# Options that `frozen` adds to those of the preset of that name.
FROZEN: dict[str, Any] = {
    "model": "Timm", "model.name": "tf_efficientnet_lite0", "model.input_size": 96, "bank.weak": 2, "bank.strong": 4,
}  # fmt: skip
FROZEN_BY_DATASET: dict[str, dict[str, Any]] = {
    "fashion_mnist": {"subset.train": 5000, "subset.test": 2000},  # as many as a laptop embeds in minutes
    "svhn": {"flip": False},
}
DATASET_NAMES = {
    "digits": "digits", "fashion_mnist": "Fashion-MNIST", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100",
    "svhn": "SVHN", "stl10": "STL-10",
}  # fmt: skip


def run_options(scale: Scale, data: str, labels: int | None, **more: Any) -> dict[str, Any]:
    """The training options of a dataset at a scale."""
    shown = {} if labels is None else {"labels": labels}
    if scale == "smoke":
        return {"data": "digits", **shown, **SMOKE, **more}
    return {"data": data, **shown, **common_options(scale, data), **more}


def common_options(scale: Scale, data: str) -> dict[str, Any]:
    """What all runs on a dataset have in common."""
    if scale == "cpu":
        return CPU | CPU_BY_DATASET.get(data, {})
    return frozen_options(data) if scale == "frozen" else paper_options(data)


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
    return {**options, "model": model["class_path"].rpartition(".")[2], **arguments, "batch_size": 64, **flip}


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
    name = column_name(data, labels, keep)
    return TableColumn(name, {**run_options(scale, data, labels), **kept}, name, rows)


def with_steps(column: TableColumn, steps: int) -> TableColumn:
    """The column with another number of steps, evaluated as often as before."""
    options = column.options
    eval_every = steps * options["eval_every"] // options["steps"]
    return replace(column, options={**options, "steps": steps, "eval_every": eval_every})


def default_column(scale: Scale) -> TableColumn:
    """CIFAR-100 with 2,500 labels; at cpu scale CIFAR-10 with 250, where FlexMatch beats Supervised in so few steps."""
    if scale != "cpu":
        return column(scale, "cifar100", 2500)
    return replace(column(scale, "cifar10", 250), stands_for=column_name("cifar100", 2500))


def ablation_column(scale: Scale) -> tuple[str, TableColumn]:
    """The base method and the column of an ablation.

    At cpu scale it is FixMatch on digits: in so few steps FlexMatch would accept every pseudo label.
    """
    if scale == "cpu":
        return "FixMatch", column(scale, "digits", 20)
    return "FlexMatch", default_column(scale)
