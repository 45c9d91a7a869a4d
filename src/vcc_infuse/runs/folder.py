"""RunFolder: the configuration, one JSON line per evaluation and per core set, the checkpoints and the summary."""

from __future__ import annotations

import importlib.metadata
import platform
from pathlib import Path
from typing import Any

import torch

from ..errors import OptionError
from ..utils.io import append_jsonl, jsonl_line, read_jsonl, write_json, write_text
from . import checkpoint


class RunFolder:
    """The files of one run. Nothing is created before `create`."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.metrics = self.path / "metrics.jsonl"
        self.selections = self.path / "selections.jsonl"
        self.checkpoints = self.path / "checkpoints"

    def check_free(self) -> None:
        """Refuse a folder that already holds files: results are never overwritten."""
        problem = "it is a file" if self.path.is_file() else ""
        if self.path.is_dir() and any(self.path.iterdir()):
            problem = "it already holds files: use another folder, or resume this run"
        if problem:
            raise OptionError("out", str(self.path), "must be a new or empty folder", problem)

    def create(self, config: str) -> None:
        """Create the folder and write its configuration."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as fault:
            reason = f"it cannot be created: {fault.strerror}"
            raise OptionError("out", str(self.path), "must be in a writable folder", reason) from fault
        self.write_text("config.yaml", config)

    def reopen(self, config: str) -> None:
        """Make a finished run one that is still training, because it is extended; an unfinished one stays as it is."""
        summary = self.path / "summary.json"
        if summary.exists():
            summary.unlink()  # first: an interruption leaves a run that can be continued
            self.write_text("config.yaml", config)

    def has_checkpoint(self) -> bool:
        """Whether there is a checkpoint to continue from."""
        return any(self.checkpoints.glob("step-*.pt"))

    def write_text(self, name: str, text: str) -> None:
        """Write a text file atomically."""
        write_text(self.path / name, text)

    def append(self, line: dict[str, Any]) -> None:
        """Add an evaluation to metrics.jsonl."""
        append_jsonl(self.metrics, line)

    def append_selection(self, line: dict[str, Any]) -> None:
        """Add a refresh of the core set to selections.jsonl."""
        append_jsonl(self.selections, line)

    def rewind(self, step: int) -> None:
        """Drop the lines written after the checkpoint a run resumes from: the run writes them again.

        An evaluation is recorded after its step, a core set before the step it is for.
        """
        _keep_until(self.metrics, step)
        _keep_until(self.selections, step - 1)

    def save_checkpoint(self, step: int, state: dict[str, Any]) -> None:
        """Store the state after `step` steps."""
        checkpoint.save(self.checkpoints, step, state)

    def load_checkpoint(self, device: torch.device) -> dict[str, Any] | None:
        """The newest undamaged state."""
        return checkpoint.load(self.checkpoints, device)

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write the final metrics. The presence of summary.json marks a finished run."""
        write_json(self.path / "summary.json", summary)


def _keep_until(path: Path, step: int) -> None:
    if path.exists():
        write_text(path, "".join(jsonl_line(line) for line in read_jsonl(path).values if line["step"] <= step))


def versions() -> dict[str, str]:
    """The versions of everything the metrics depend on."""
    packages = ["vcc-infuse", "torch", "torchvision", "accelerate", "numpy", "scikit-learn"]
    found = {name: _version(name) for name in packages}
    return {"python": platform.python_version(), "platform": platform.platform(), **found}


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
