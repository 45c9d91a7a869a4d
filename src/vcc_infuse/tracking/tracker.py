"""Tracker: hands each evaluation of a run to accelerate's tracker."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from uuid import uuid4

import yaml
from accelerate import Accelerator
from accelerate.utils import LoggerType

from ..errors import UserError
from ..utils.io import nan_to_none, write_atomic

# wandb would hold a step back until the next one comes.
IMAGE_OPTIONS: dict[str, dict[str, Any]] = {"tensorboard": {"dataformats": "NHWC"}, "wandb": {"commit": True}}


class Tracker:
    """The live view of one run; does nothing where none was asked for."""

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator = accelerator
        self.noted = 0

    def start(self, folder: Path, config: str, resumed: int | None, noted: int) -> None:
        """Begin, or go on after `resumed` steps; evaluations up to step `noted` were made before."""
        if LoggerType.TENSORBOARD in self.accelerator.log_with:
            # Hides what came after the checkpoint. No name: the events lie in the run folder itself.
            purge = {} if resumed is None else {"purge_step": resumed + 1}
            self.accelerator.init_trackers("", init_kwargs={"tensorboard": purge})
        elif LoggerType.WANDB in self.accelerator.log_with:
            start_wandb(self.accelerator, folder, config)
            # wandb cannot take a step back; a resumed run repeats its figures exactly, so those it has will do.
            self.noted = noted

    def write(self, step: int, figures: dict[str, Any]) -> None:
        """Show the scalars and the reliability diagram of one evaluation."""
        if not self.accelerator.trackers or step <= self.noted:
            return
        from .plots import reliability_picture

        scalars = {name: value for name, value in nan_to_none(figures).items() if isinstance(value, int | float)}
        self.accelerator.log(scalars, step)
        # Without a test set there is none.
        pictures = {"reliability": reliability_picture(figures)[None]} if "reliability" in figures else {}
        for tracker in self.accelerator.trackers:
            tracker.log_images(pictures, step, **IMAGE_OPTIONS[tracker.name])
            if tracker.name == "tensorboard":
                tracker.tracker.flush()

    def close(self) -> None:
        """Finish files and uploads."""
        while self.accelerator.trackers:  # emptied, so that accelerate does not finish them a second time
            self.accelerator.trackers.pop().finish()


def start_wandb(accelerator: Accelerator, folder: Path, config: str) -> None:
    """Open the run that belongs to `folder`, new or not; wandb's own files go to `folder`/wandb."""
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
        raise UserError(f"--tracker wandb cannot start ({reason}); {remedy}") from fault


def run_id(folder: Path) -> str:
    """The id kept in the run folder, made at first use."""
    path = folder / "wandb-id.txt"
    if not path.exists():
        write_atomic(path, lambda temporary: temporary.write_text(uuid4().hex[:8], encoding="utf-8"))
    return path.read_text(encoding="utf-8").strip()
