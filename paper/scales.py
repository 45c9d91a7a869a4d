"""The four scales, and the options of a dataset and a number of labels at each.

`smoke` is for tests: digits stand in for every dataset and a run has four steps. `scratch` trains a small network on
small images from random weights. `frozen` trains heads on features of a pretrained network, beside baselines on the
same features. `paper` is the full protocol, for GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from vcc_infuse.errors import UserError
from vcc_infuse.training.presets import preset_options

from .cell import Options
from .datasets import check_available
from .table import CORE, Row, Table, TableColumn, all_five, display_name, method, names

Scale = Literal["smoke", "scratch", "frozen", "paper"]
SCALES: tuple[Scale, ...] = ("smoke", "scratch", "frozen", "paper")
SMOKE: dict[str, Any] = {
    "preset": "scratch", "steps": 4, "eval_every": 2, "batch_size": 8, "unlabeled_ratio": 2, "model": "SmallConv",
    "model.width": 4,
}  # fmt: skip
# Single precision, so that another machine computes the same; evaluated once, so that all time goes into training.
SCRATCH: dict[str, Any] = {
    "preset": "scratch", "steps": 3000, "eval_every": 3000, "batch_size": 16, "precision": "fp32", "model": "SmallConv",
    "model.width": 16,
}  # fmt: skip
SCRATCH_BY_DATASET: dict[str, dict[str, Any]] = {
    "mnist": {"size": 16, "flip": False},
    "svhn": {"size": 16, "flip": False, "model.width": 24},
    "fashion_mnist": {"size": 14},
}
SCRATCH_SETTINGS = (("mnist", 40), ("svhn", 250), ("svhn", 1000), ("fashion_mnist", 100))
"""MNIST saturates as CIFAR-10 does in the paper; on SVHN few predictions reach a threshold of 0.95."""
SCRATCH_PROTOCOL = (
    "A small network (three convolutions) from random weights, on images of 14 or 16 pixels per side, 3,000 steps of "
    "16 labeled and 112 unlabeled images. The paper trains other networks on more images for 350 times as many steps, "
    "so its numbers are not shown. A column counts for a method only if its base is ahead of Supervised there."
)
PIXELS = Row(
    "LinearProbe on pixels", {"algorithm": "LinearProbe", "model": "MLP", "model.hidden": [], "head_init": "random"}
)
# Options that `frozen` adds to those of the preset of that name. Tables compare methods, not their mix with a probe.
FROZEN: dict[str, Any] = {
    "model": "Timm", "model.name": "tf_efficientnet_lite0", "model.input_size": 224, "bank.weak": 2, "bank.strong": 4,
    "cross_fit": False,
}  # fmt: skip
# As many images as a laptop embeds in minutes: seven views at 224 pixels cost a second per ten to twenty images.
FROZEN_BY_DATASET: dict[str, dict[str, Any]] = {
    "cifar10": {"subset.train": 8000, "subset.test": 2000},
    "cifar100": {"subset.train": 6000, "subset.test": 2000},
    "fashion_mnist": {"subset.train": 5000, "subset.test": 2000},
    "svhn": {"subset.train": 5000, "subset.test": 2000, "flip": False},
}
FROZEN_SETTINGS = (
    ("cifar10", 40), ("cifar10", 250), ("cifar100", 400), ("cifar100", 2500), ("stl10", 40), ("svhn", 250),
    ("fashion_mnist", 100),
)  # fmt: skip
"""Every dataset and number of labels of the scale `frozen`."""
ABLATION_SETTINGS = (("cifar100", 2500), ("cifar10", 250), ("stl10", 40))
"""Those of its ablations: the paper's, and two in which FixMatch is better than the linear probe."""
SIMMATCH_SETTINGS = (("stl10", 40),)
"""Where SimMatch is run with VCC and its controls: its memory of features makes it the slowest method on a bank."""
FLEXMATCH_SETTINGS = (("cifar100", 2500), ("stl10", 40))
"""Where FlexMatch is run with VCC and its controls: elsewhere it selects nearly every row, and VCC cannot act."""
DATASET_NAMES = {
    "digits": "digits", "mnist": "MNIST", "fashion_mnist": "Fashion-MNIST", "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100", "svhn": "SVHN", "stl10": "STL-10",
}  # fmt: skip
BASELINES = ("Supervised", "LinearProbe", "LabelSpreading", "SelfTraining")
REFERENCE = "LinearProbe"
METRICS = ("ece", "ece_calibrated", "pseudo_label_coverage", "pseudo_label_precision", "seconds")
LEFT_OUT = {
    "ReMixMatch": "it rotates images, and features cannot be rotated",
    "FullySupervised": "a probe on all labels is slow",
}
NARROW = {"CoMatch": 256, "SimMatch": 256}
"""Hidden units of their projections: one as wide as the 1,280 features would be most of a step on a bank."""
PROTOCOL = (
    "Heads on a bank of frozen features (EfficientNet-Lite0 with ImageNet weights, images resized to 224×224, 1 plain, "
    "2 weak and 4 strong views). Every head starts at the linear probe. The paper trains other networks on more "
    "images, so its numbers are not shown."
)
SVHN = "Frozen ImageNet features are weak on SVHN's house numbers: expect high errors in all rows there."


def run_options(scale: Scale, data: str, labels: int | None, **more: Any) -> dict[str, Any]:
    """The training options of a dataset at a scale."""
    shown = {} if labels is None else {"labels": labels}
    if scale == "smoke":
        return {"data": "digits", **shown, **SMOKE, **more}
    if scale == "scratch":
        return {"data": data, **shown, **SCRATCH, **SCRATCH_BY_DATASET[data], **more}
    common = frozen_options(data) if scale == "frozen" else paper_options(data)
    return {"data": data, **shown, **common, **more}


def frozen_options(data: str) -> dict[str, Any]:
    """The preset `frozen`, evaluated once: a run takes seconds."""
    steps = preset_options("frozen", data)["steps"]
    return {"preset": "frozen", "steps": steps, "eval_every": steps, **FROZEN, **FROZEN_BY_DATASET.get(data, {})}


def paper_options(data: str) -> dict[str, Any]:
    """The preset `paper`; its network, its weight decay and arguments of methods depend on the data."""
    protocol = preset_options("paper", data)
    flip = {"flip": False} if data == "svhn" else {}
    return {"preset": "paper", "steps": protocol["steps"], "eval_every": protocol["eval_every"], **flip}


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
    options = {**run_options(scale, data, labels), **kept}
    return TableColumn(name, options, name, rows)


def core_names(data: str, labels: int) -> tuple[str, ...]:
    """The rows of FixMatch, FlexMatch and SimMatch that a column of the scale `frozen` has, in all tables."""
    fixmatch, flexmatch, simmatch = (names(all_five(name, {})) for name in CORE)
    setting = (data, labels)
    acts = setting in FLEXMATCH_SETTINGS
    return *fixmatch, *(flexmatch if acts else flexmatch[:1]), *(simmatch if setting in SIMMATCH_SETTINGS else ())


def default_column(scale: Scale) -> TableColumn:
    """CIFAR-100 with 2,500 labels, as in most of the paper's tables; at scratch scale MNIST with 40."""
    return column(scale, "mnist", 40) if scale == "scratch" else column(scale, "cifar100", 2500)


def ablation_columns(scale: Scale, rows: Mapping[str, Sequence[Row]]) -> tuple[TableColumn, ...]:
    """The paper's column; at frozen scale two more. `rows` has those of each base method.

    FlexMatch is the base in the paper's column and FixMatch in the others, where it learns from fewer pseudo labels.
    """
    if scale == "scratch":
        return tuple(column(scale, *pair) for pair in SCRATCH_SETTINGS)
    if scale != "frozen":
        return (default_column(scale),)
    bases = {"cifar100": "FlexMatch"}
    return tuple(column(scale, *pair, rows=names(rows[bases.get(pair[0], "FixMatch")])) for pair in ABLATION_SETTINGS)


def ablation_bases(scale: Scale) -> tuple[str, ...]:
    """The base methods of an ablation."""
    return {"frozen": ("FlexMatch", "FixMatch"), "scratch": ("FixMatch",)}.get(scale, ("FlexMatch",))


def on_bank(table: Table) -> Table:
    """The table with the baselines first, without methods that need images and without the paper's numbers."""
    rows = (*map(method, BASELINES), *(row for row in table.rows if suits_bank(row)))
    columns = tuple(without_paper(column, names(rows)) for column in table.columns)
    comparable = table.metrics[0] == "error"  # of other metrics the baselines have none
    return replace(
        table,
        rows=tuple(replace(row, options=narrow(row.options), paper={}) for row in rows),
        columns=columns,
        metrics=tuple(dict.fromkeys([*table.metrics, *(METRICS if comparable else ())])),
        remark=" ".join(filter(None, [table.remark, *remarks(table)])),
        reference=REFERENCE if comparable else None,
    )


def from_scratch(table: Table) -> Table:
    """The table with the baselines first and without the paper's numbers; rows are also compared with Supervised."""
    comparable = table.metrics[0] == "error"
    first = (method("Supervised"), PIXELS) if comparable else ()
    rows = (*first, *(row for row in table.rows if row.name not in names(first)))
    columns = tuple(replace(column, stands_for=None) for column in table.columns)
    return replace(
        table,
        rows=tuple(replace(row, paper={}) for row in rows),
        columns=tuple(
            column if column.rows is None else replace(column, rows=(*names(first), *column.rows)) for column in columns
        ),
        metrics=tuple(dict.fromkeys([*table.metrics, *(METRICS if comparable else ())])),
        remark=" ".join(filter(None, [table.remark, SCRATCH_PROTOCOL])),
        reference="Supervised" if comparable else None,
    )


def suits_bank(row: Row) -> bool:
    """Whether the row is neither a baseline, which is there already, nor left out."""
    alone = "calibrator" not in row.options and "selector" not in row.options
    algorithm = row.options["algorithm"]
    return algorithm not in LEFT_OUT and not (alone and algorithm in BASELINES)


def narrow(options: Options) -> Options:
    """The options of a row with a narrow projection, alone or as the base of a wrapper."""
    widths = {part: NARROW.get(options.get(part, "")) for part in ("algorithm", "algorithm.base")}
    return {**options, **{f"{part}.hidden_dim": width for part, width in widths.items() if width}}


def without_paper(column: TableColumn, known: Sequence[str]) -> TableColumn:
    """The column with the baselines and those of its rows that are known, compared with none of the paper's."""
    wanted = column.rows if column.rows is None else {*BASELINES, *column.rows}
    rows = None if wanted is None else tuple(name for name in known if name in wanted)
    return replace(column, stands_for=None, rows=rows)


def remarks(table: Table) -> list[str]:
    """What a reader has to know."""
    algorithms = {row.options["algorithm"] for row in table.rows}
    missing = [f"{display_name(name)} is left out: {why}." for name, why in LEFT_OUT.items() if name in algorithms]
    weak = [SVHN] if any("SVHN" in column.name for column in table.columns) else []
    return [PROTOCOL, *missing, *weak]


def without_missing(table: Table, data_root: str | None) -> Table:
    """At frozen scale, the table without Fashion-MNIST if it is not installed, and a remark that says so."""
    others = tuple(column for column in table.columns if column.options["data"] != "fashion_mnist")
    if table.reference is None or not others or len(others) == len(table.columns):
        return table
    try:
        check_available(["fashion_mnist"], data_root)
    except UserError:
        remark = f"{table.remark} Fashion-MNIST is skipped: apt-get install dataset-fashion-mnist."
        return replace(table, columns=others, remark=remark)
    return table
