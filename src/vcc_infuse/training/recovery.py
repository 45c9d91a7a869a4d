"""Recovery: what a run does when its loss is not finite, by the option `on_nan`, and what it warns of at its end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from ..data.batches import Batches
from ..errors import UserError
from ..utils.seeding import seed_step
from .config import TrainConfig
from .distributed import gather
from .nonfinite import PATIENCE, ROLLBACKS, about_evaluations, about_metrics, diverged, find_cause
from .recorder import RunRecorder
from .state import TrainState


class Recovery:
    """Stops a run, takes it back to its last checkpoint, or leaves out a batch."""

    def __init__(self, state: TrainState, batches: Batches, recorder: RunRecorder, config: TrainConfig) -> None:
        self.state, self.batches, self.recorder, self.config = state, batches, recorder, config

    def blame_weights(self, step: int, fault: Exception) -> Exception:
        """Make weights that are not finite the news, and not what a method says about them; several processes stop."""
        self.state.watch.step.fill_(step)
        if self.state.world > 1:
            raise UserError(diverged(step, {}, self._cause(step, {}))) from fault
        return fault

    def bad_step(self) -> int | None:
        """The first step whose loss is not finite on any process."""
        watch = self.state.watch
        if self.state.world > 1:
            steps = gather(watch.step[None])
            watch.step = steps[steps >= 0].min() if (steps >= 0).any() else watch.step
        return watch.found()

    def recover(self, step: int, fault: Exception | None) -> int:
        """Stop with the reason, or go back to the last checkpoint with half the learning rate; returns its step."""
        state, terms = self.state, self.state.watch.values()
        problem = diverged(step, terms, self._cause(step, terms))
        if self.config.on_nan != "rollback" or state.lr_scale <= 0.5**ROLLBACKS:
            out, done = self.config.out, self.recorder.last_checkpoint()
            kept = f"; {out} keeps its checkpoint of step {done}" if done else ""
            tried = f", also with lr × {state.lr_scale:g}" if state.lr_scale < 1 else ""
            raise UserError(f"{problem}{tried}{kept}") from fault
        scale, warnings = state.lr_scale / 2, list(state.warnings)
        done = self.recorder.rewind()
        state.lr_scale, state.warnings = scale, warnings
        state.warn(f"{problem}; went back to step {done}, and lr is × {scale:g} from there on")
        self.recorder.checkpoint(done)  # so that a run that is interrupted from here on continues the same way
        state.coreset_scheduler.resume(self.batches)
        return done

    def _cause(self, step: int, terms: dict[str, float]) -> str:
        seed_step(self.config.seed, step, self.state.accelerator.process_index)
        batch = self.batches.at(step)
        return find_cause(step, batch, terms, self.state.accelerator.mixed_precision, self.config)

    def buffers(self) -> list[Tensor]:
        """Copies of running statistics and memories as they are now."""
        return [buffer.clone() for buffer in self._buffers()]

    def _buffers(self) -> list[Tensor]:
        return [buffer for module in self.state.modules for buffer in module.buffers()]

    def leave_out(self, number: int, before: list[Tensor]) -> None:
        """Undo what the forward of a batch without a finite gradient did to running statistics and memories."""
        state = self.state
        for buffer, old in zip(self._buffers(), before, strict=True):
            buffer.copy_(old)
        state.skipped, state.skipped_in_row = state.skipped + 1, state.skipped_in_row + 1
        if state.skipped_in_row >= PATIENCE:
            raise self._given_up(number)

    @contextmanager
    def in_vain(self, number: int) -> Iterator[None]:
        """What a measurement says about a network whose batches are left out is blamed on what made it so."""
        try:
            yield
        except UserError as fault:
            raise (self._given_up(number) if self.state.skipped_in_row else fault) from fault.__cause__

    def _given_up(self, number: int) -> UserError:
        left_out = f"{self.state.skipped_in_row} batches in a row were left out in vain"
        return UserError(f"{diverged(number, {}, self._cause(number, {}))}; {left_out}")

    def warn_at_the_end(self, last: dict[str, Any]) -> None:
        """What the last evaluation and the run folder give reason to warn of."""
        state, steps = self.state, self.state.task.steps
        if state.skipped:
            state.warn(f"{state.skipped} batches were left out, because their gradient was not finite; lower lr")
        state.warn(*about_metrics(last, steps, state.data.dataset.classes))
        if self.recorder.folder is not None and steps:
            recorded = self.recorder.evaluations()
            state.warn(*about_evaluations(recorded, steps, self.config.eval_every))
