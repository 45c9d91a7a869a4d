"""Sets of defaults: a run for a laptop, and the protocol of the papers. Every option given beside them wins."""

from __future__ import annotations

from typing import Any

from ..errors import UserError

WIDE_28_2 = {"class_path": "vcc_infuse.models.WideResNet", "init_args": {"depth": 28, "width": 2}}


WIDE_28_8 = {"class_path": "vcc_infuse.models.WideResNet", "init_args": {"depth": 28, "width": 8}}


WIDE_37_2 = {"class_path": "vcc_infuse.models.WideResNet", "init_args": {"depth": 37, "width": 2}}


def preset(name: str, data: str) -> dict[str, Any]:
    """The options of a preset; the paper's network and weight decay depend on the data."""
    if name == "quick":
        return {"steps": 1000, "epochs": 20, "eval_every": 1, "model": {"class_path": "vcc_infuse.models.SmallConv"}}
    if name == "paper":
        protocol: dict[str, Any] = {
            "steps": 2**20,
            "epochs": 1024,
            "eval_every": 5,
            "model": WIDE_28_2,
            "weight_decay": 5e-4,
        }
        special: dict[str, dict[str, Any]] = {
            "cifar100": {"model": WIDE_28_8, "weight_decay": 1e-3},
            "stl10": {"model": WIDE_37_2},
        }
        return protocol | special.get(data, {})
    raise UserError(f"--preset {name} is unknown; choose quick or paper")
