"""The live view of a run in TensorBoard or Weights & Biases: its metrics and its reliability diagrams."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import yaml
from accelerate import Accelerator
from accelerate.utils import LoggerType
from PIL import Image

from .errors import UserError
from .utils.io import nan_to_none, write_text

# `commit`: wandb would otherwise hold back a step until the next one is logged.
IMAGE_OPTIONS: dict[str, dict[str, Any]] = {"tensorboard": {"dataformats": "NHWC"}, "wandb": {"commit": True}}


class Tracker:
    """Sends the evaluations of one run to the tracker that its accelerator was made with; does nothing without one."""

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
        """Log the scalars and the reliability diagrams of one evaluation."""
        if not self.accelerator.trackers or step <= self.shown_until:
            return
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

    path = folder / "wandb-id.txt"
    if not path.exists():
        write_text(path, uuid4().hex[:8])
    options = {
        "id": path.read_text(encoding="utf-8").strip(),
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


def reliability_image(metrics: dict[str, Any]) -> np.ndarray:
    """Draw both reliability diagrams of an evaluation, as RGB pixels: softmax on the left, calibrated on the right.

    A bar per bin is as high as its accuracy, with a dot at its mean confidence; empty bins are left out.
    """
    # Not pyplot, which keeps every figure in memory and chooses a backend for the whole process.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.4), dpi=100, layout="constrained")
    for axes, suffix in zip(figure.subplots(1, 2), ("", "_calibrated"), strict=True):
        diagram = metrics[f"reliability{suffix}"]
        bins = len(diagram["count"])
        filled = [i for i, count in enumerate(diagram["count"]) if count]
        accuracy = [diagram["accuracy"][i] for i in filled]
        left = [i / bins for i in filled]
        axes.bar(left, accuracy, 1 / bins, align="edge", color="#4c78a8", edgecolor="white", linewidth=0.5)
        axes.plot([0, 1], [0, 1], color="gray", linestyle="--", linewidth=0.8)
        axes.plot([diagram["confidence"][i] for i in filled], accuracy, "o", color="#e45756", markersize=3)
        axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", ylabel="accuracy")
        axes.set_title(f"{'calibrated' if suffix else 'softmax'}: ECE {metrics[f'ece{suffix}']:.1%}", fontsize=10)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return np.asarray(Image.open(buffer).convert("RGB"))
