"""What a run leaves behind: configuration, a line an evaluation, a summary, the model and checkpoints."""

from __future__ import annotations

import importlib.metadata
import json
import platform
from pathlib import Path
from typing import Any

import torch

from ..errors import UserError
from ..utils.io import append_jsonl, nan_to_none, read_jsonl, write_atomic, write_json
from . import checkpoint


class RunFolder:
    """The files of one run. Nothing is created before `create`."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.metrics = self.path / "metrics.jsonl"
        self.selections = self.path / "selections.jsonl"
        self.checkpoints = self.path / "checkpoints"

    def check_free(self) -> None:
        """Refuse a folder that already holds something: a finished result is never overwritten."""
        if self.path.is_file():
            raise UserError(f"--out {self.path} is a file; give a folder that does not exist yet")
        if self.path.is_dir() and any(self.path.iterdir()):
            raise UserError(
                f"--out {self.path} already holds files; give another folder, or continue it with --resume {self.path}"
            )

    def create(self, config: str) -> None:
        """Make the folder with its configuration."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as fault:
            raise UserError(f"--out {self.path} cannot be created: {fault.strerror}") from fault
        self.write_text("config.yaml", config)

    def write_text(self, name: str, text: str) -> None:
        """Write a text file atomically."""
        write_atomic(self.path / name, lambda temporary: temporary.write_text(text, encoding="utf-8"))

    def append(self, line: dict[str, Any]) -> None:
        """Add an evaluation to metrics.jsonl."""
        append_jsonl(self.metrics, line)

    def append_selection(self, line: dict[str, Any]) -> None:
        """Add a refresh of the core set to selections.jsonl."""
        append_jsonl(self.selections, line)

    def rewind(self, step: int) -> None:
        """Forget what came after the checkpoint a run resumes from: it will come again.

        An evaluation is noted after its step, a core set before the step it is for.
        """
        self._keep(self.metrics, step)
        self._keep(self.selections, step - 1)

    def _keep(self, path: Path, step: int) -> None:
        if path.exists():
            kept = [
                json.dumps(nan_to_none(line), ensure_ascii=False) for line in read_jsonl(path) if line["step"] <= step
            ]
            self.write_text(path.name, "".join(f"{line}\n" for line in kept))

    def save_checkpoint(self, step: int, state: dict[str, Any]) -> None:
        """Store the state after `step` steps."""
        checkpoint.save(self.checkpoints, step, state)

    def load_checkpoint(self, device: torch.device) -> dict[str, Any] | None:
        """The newest undamaged state."""
        return checkpoint.load(self.checkpoints, device)

    def write_summary(self, summary: dict[str, Any]) -> None:
        """The final figures; their presence marks a finished run."""
        write_json(self.path / "summary.json", summary)


def versions() -> dict[str, str]:
    """The versions a figure depends on."""
    packages = ["vcc-infuse", "torch", "torchvision", "accelerate", "numpy", "scikit-learn"]
    found = {name: _version(name) for name in packages}
    return {"python": platform.python_version(), "platform": platform.platform(), **found}


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
