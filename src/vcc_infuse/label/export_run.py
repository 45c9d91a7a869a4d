"""A run folder from a labeling session, trained by `vcc-infuse train` on the labels as they are."""

from __future__ import annotations

import atexit
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UserError
from ..utils.io import write_text
from .session import Session

if TYPE_CHECKING:
    from .launch import LabelOptions


def train_run(session: Session, options: LabelOptions, out: Path) -> list[str]:
    """Train on the labels and return the names of the new folder's main files; it takes as long as `train` does."""
    with session.lock:
        state = session.state
        names = session.pool.names
        classes = {number: item.name for number, item in state.classes.items()}
        rows = [(names[image], classes[int(state.label[image])]) for image in (state.label >= 0).nonzero()[0]]
    if len({label for _, label in rows}) < 2:
        raise UserError("a run needs labels of two classes; label some more")
    folder = _free_folder(out)
    table = out / f"{folder.name}-labels.jsonl"
    write_text(table, "".join(json.dumps({"file": name, "label": label}) + "\n" for name, label in rows))
    network = options.network
    words = {
        "data": session.pool.source.path, "label_file": str(table), "preset": "frozen", "out": str(folder),
        "model": "Timm", "model.name": network.name, "model.weights": network.weights, "device": network.device,
        "engine": network.engine, "progress": "false",
    }  # fmt: skip
    if network.input_size:
        words["model.input_size"] = str(network.input_size)
    command = [sys.executable, "-m", "vcc_infuse.cli.main", "train"]
    command += [f"--{name}={value}" for name, value in words.items()]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as training:
        atexit.register(training.terminate)  # a server that ends takes it along
        said = training.communicate()[1]
        atexit.unregister(training.terminate)
    if training.returncode != 0:
        lines = said.strip().splitlines() or ["it failed"]
        raise UserError(f"the run was not trained: {lines[-1].removeprefix('vcc-infuse: ')}")
    return [f"{folder.name}/{name}" for name in ("model.safetensors", "summary.json", "report.html")]


def _free_folder(out: Path) -> Path:
    """run, or run-DATE if there is one already: results are never overwritten."""
    folder = out / "run"
    return folder if not folder.exists() else out / time.strftime("run-%Y%m%d-%H%M%S")
