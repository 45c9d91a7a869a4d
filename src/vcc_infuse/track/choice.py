"""Which tracker a run was asked to use, and whether it can."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ..errors import UserError

# What a tracker imports, and the extra that brings it. Not plain `wandb`: runs of it leave folders of that name, which
# Python would import.
NEEDS = {
    "tensorboard": ("track", ("torch.utils.tensorboard", "matplotlib.figure")),
    "wandb": ("wandb", ("wandb.sdk", "matplotlib.figure")),
}


def chosen_tracker(settings: dict[str, Any]) -> str | None:
    """The tracker's name; `tensorboard: true` is the older way to say `tracker: tensorboard`."""
    if settings["tracker"] != "none":
        return str(settings["tracker"])
    return "tensorboard" if settings["tensorboard"] else None


def check_tracker(settings: dict[str, Any]) -> None:
    """Refuse a tracker that is not installed: better to miss it now than after the folder was made."""
    name = chosen_tracker(settings)
    if name is None:
        return
    if name not in NEEDS:
        raise UserError(f"--tracker {name} is unknown; choose one of none, {', '.join(NEEDS)}")
    if settings["tensorboard"] and name != "tensorboard":
        raise UserError(f"--tensorboard and --tracker {name} exclude each other; leave one out (--tensorboard false)")
    option = "--tensorboard" if settings["tracker"] == "none" else f"--tracker {name}"
    if settings["out"] is None and settings["tracker"] != "none":
        raise UserError(f"{option} needs a run folder; give --out (in Python: Trainer(out=…))")
    extra, modules = NEEDS[name]
    try:
        for module in modules:
            import_module(module)
    except ImportError as fault:
        raise UserError(f"{option} needs an extra: pip install 'vcc-infuse[{extra}]'") from fault
