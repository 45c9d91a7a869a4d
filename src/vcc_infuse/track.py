"""TensorBoard events beside metrics.jsonl, for those who like to watch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .errors import UserError


def summary_writer() -> Any:
    """TensorBoard's writer class, or what to install."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as fault:
        raise UserError("--tensorboard needs an extra: pip install 'vcc-infuse[track]'") from fault
    return SummaryWriter


class Tracker:
    """Writes every scalar of an evaluation; does nothing without a folder."""

    def __init__(self, folder: Path | None) -> None:
        self.writer = summary_writer()(str(folder)) if folder else None

    def write(self, step: int, figures: dict[str, Any]) -> None:
        """Note the scalars of one evaluation."""
        if self.writer is None:
            return
        for name, value in figures.items():
            if isinstance(value, int | float):
                self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def close(self) -> None:
        """Finish the file."""
        if self.writer is not None:
            self.writer.close()
