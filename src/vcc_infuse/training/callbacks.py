"""Callbacks: what watches a run while it trains. They observe; they never take an optimizer step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..selectors.ranking import Selection
from ..utils.progress import TrainingProgress

if TYPE_CHECKING:
    from ..tracking import Tracker
    from .trainer import Trainer


class Callback:
    """Override what you need; every method does nothing by itself.

    All processes of a run call all methods; `trainer.state_.main` is true on the first one. The trainer gives access
    to its `config`, its number of `steps`, and its `state_` (model, averaged model, optimizer, statistics).

    Example:
        >>> class PrintError(Callback):
        ...     def on_evaluation(self, trainer, metrics):
        ...         print(metrics["step"], metrics["error"])
    """

    def on_start(self, trainer: Trainer, start: int) -> None:
        """Called once before the first step; `start` is above 0 for a run that is resumed."""

    def on_step(self, trainer: Trainer, done: int) -> None:
        """Called after every step; `done` steps are done."""

    def on_selection(self, trainer: Trainer, selection: Selection, metrics: dict[str, Any]) -> None:
        """Called after a new core set was chosen."""

    def on_evaluation(self, trainer: Trainer, metrics: dict[str, Any]) -> None:
        """Called after every evaluation, with what will be a line of metrics.jsonl."""

    def on_fold(self, trainer: Trainer, done: int) -> None:
        """Called after every run of the cross-validation; `done` of them are done."""

    def on_rewind(self, trainer: Trainer, done: int) -> None:
        """Called when a run went back to the checkpoint of step `done`."""

    def on_finish(self, trainer: Trainer, summary: dict[str, Any]) -> None:
        """Called on the first process with the summary of a run that came to its end."""

    def on_end(self, trainer: Trainer) -> None:
        """Called at the very end, also when the run was interrupted or failed."""


class ShowProgress(Callback):
    """A bar on a terminal, elsewhere a few lines."""

    shown: TrainingProgress | None = None

    def on_start(self, trainer: Trainer, start: int) -> None:
        """Show the bar."""
        self.shown = TrainingProgress(trainer.steps, start, trainer.config.progress and trainer.state_.main)

    def on_step(self, trainer: Trainer, done: int) -> None:
        """Advance the bar."""
        if self.shown:
            # Reading the statistics makes the host wait for the device, so it is done only where they are shown.
            self.shown.step(trainer.state_.stats.read() if self.shown.due(done - 1) else None)

    def on_rewind(self, trainer: Trainer, done: int) -> None:
        """Some steps are taken again."""
        if self.shown:
            self.shown.back_to(done)

    def on_evaluation(self, trainer: Trainer, metrics: dict[str, Any]) -> None:
        """Print the main figures."""
        if self.shown:
            self.shown.evaluated(metrics["step"], metrics)

    def on_end(self, trainer: Trainer) -> None:
        """Close the bar."""
        if self.shown:
            self.shown.close()


class LiveView(Callback):
    """Sends every evaluation to TensorBoard or Weights & Biases, if the run has a tracker."""

    tracker: Tracker | None = None

    def on_start(self, trainer: Trainer, start: int) -> None:
        """Open the tracker, or continue it."""
        recorder = trainer.recorder_
        if trainer.config.tracker == "none" or recorder.folder is None or not recorder.writes:
            return
        from ..tracking import Tracker  # needs packages of an extra

        self.tracker = Tracker(trainer.state_.accelerator)
        resumed = start if recorder.resumed else None
        self.tracker.start(recorder.folder.path, recorder.config, resumed, recorder.recorded)

    def on_evaluation(self, trainer: Trainer, metrics: dict[str, Any]) -> None:
        """Send the figures and the reliability diagram."""
        if self.tracker:
            self.tracker.write(metrics["step"], metrics)

    def on_end(self, trainer: Trainer) -> None:
        """Finish files and uploads."""
        if self.tracker:
            self.tracker.close()
