"""Tracker: sends each evaluation of a run to TensorBoard or Weights & Biases through accelerate."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from uuid import uuid4

import yaml
from accelerate import Accelerator
from accelerate.utils import LoggerType

from ..errors import UserError
from ..utils.io import nan_to_none, write_text

# `commit`: wandb would otherwise hold back a step until the next one is logged.
IMAGE_OPTIONS: dict[str, dict[str, Any]] = {"tensorboard": {"dataformats": "NHWC"}, "wandb": {"commit": True}}


class Tracker:
    """The live view of one run; does nothing if the run has no tracker."""

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator = accelerator
        self.shown_until = 0

    def start(self, folder: Path, config: str, resumed: int | None, recorded: int) -> None:
        """Start, or continue after `resumed` steps; evaluations up to step `recorded` were tracked before."""
        if LoggerType.TENSORBOARD in self.accelerator.log_with:
            # `purge_step` hides events after the checkpoint. The empty name puts the events into the run folder itself.
            purge = {} if resumed is None else {"purge_step": resumed + 1}
            self.accelerator.init_trackers("", init_kwargs={"tensorboard": purge})
        elif LoggerType.WANDB in self.accelerator.log_with:
            start_wandb(self.accelerator, folder, config)
            # wandb cannot go back a step. A resumed run repeats its metrics exactly, so they need not be sent again.
            self.shown_until = recorded

    def write(self, step: int, metrics: dict[str, Any]) -> None:
        """Log the scalars and the reliability diagram of one evaluation."""
        if not self.accelerator.trackers or step <= self.shown_until:
            return
        from .plots import reliability_image

        scalars = {name: value for name, value in nan_to_none(metrics).items() if isinstance(value, int | float)}
        self.accelerator.log(scalars, step)
        # A run without a test set has no diagram.
        images = {"reliability": reliability_image(metrics)[None]} if "reliability" in metrics else {}
        for tracker in self.accelerator.trackers:
            tracker.log_images(images, step, **IMAGE_OPTIONS[tracker.name])
            if tracker.name == "tensorboard":
                tracker.tracker.flush()

    def close(self) -> None:
        """Finish files and uploads."""
        while self.accelerator.trackers:  # emptied, because accelerate would finish them a second time
            self.accelerator.trackers.pop().finish()


def start_wandb(accelerator: Accelerator, folder: Path, config: str) -> None:
    """Open the wandb run of `folder`, new or resumed; wandb's own files go to `folder`/wandb."""
    from wandb.errors import Error

    options = {
        "id": run_id(folder),
        "resume": "allow",
        "name": folder.resolve().name,
        "dir": str(folder),
        "config": yaml.safe_load(config),
    }
    try:
        accelerator.init_trackers(os.environ.get("WANDB_PROJECT", "vcc-infuse"), init_kwargs={"wandb": options})
    except Error as fault:
        reason = " ".join(str(fault).split())
        remedy = f"run `wandb login` or set WANDB_MODE=offline, then: vcc-infuse train --resume {folder}"
        raise UserError(f"tracker wandb cannot start ({reason}); {remedy}") from fault


def run_id(folder: Path) -> str:
    """The wandb id stored in the run folder; created at first use."""
    path = folder / "wandb-id.txt"
    if not path.exists():
        write_text(path, uuid4().hex[:8])
    return path.read_text(encoding="utf-8").strip()
