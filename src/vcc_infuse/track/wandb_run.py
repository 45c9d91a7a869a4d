"""A run of Weights & Biases that goes on under the same id when training is resumed."""

from __future__ import annotations

import os
from pathlib import Path
from uuid import uuid4

import yaml
from accelerate import Accelerator

from ..errors import UserError
from ..files import write_atomic


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
