"""Presets: options of a run for a laptop, and the protocol of the papers. An option given beside a preset wins."""

from __future__ import annotations

from typing import Any

from ..validation import check_choice

PRESETS = ("quick", "paper")
PAPER_REFRESH = 40 * 1024
"""Steps between two refreshes of the core set in the paper."""


def preset(name: str, data: str) -> dict[str, Any]:
    """The options of a preset. The paper's network and weight decay depend on the data."""
    if check_choice("preset", name, PRESETS) == "quick":
        return {"steps": 1000, "eval_every": 50, "model": {"class_path": "vcc_infuse.SmallConv"}}
    protocol = {"steps": 2**20, "eval_every": 5 * 1024, "model": _wide_resnet(28, 2), "weight_decay": 5e-4}
    special: dict[str, dict[str, Any]] = {
        "cifar100": {"model": _wide_resnet(28, 8), "weight_decay": 1e-3},
        "stl10": {"model": _wide_resnet(37, 2)},
    }
    return protocol | special.get(data, {})


def _wide_resnet(depth: int, width: int) -> dict[str, Any]:
    return {"class_path": "vcc_infuse.WideResNet", "init_args": {"depth": depth, "width": width}}
