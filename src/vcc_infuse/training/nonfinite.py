"""Losses that are not finite: noticing them, naming the cause, and going on as the option `on_nan` says."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..data.batches import Batches
from ..errors import UserError
from ..types import Batch, Losses
from ..utils.seeding import seed_step
from .callbacks import Callback
from .config import TrainConfig
from .distributed import gather
from .recorder import RunRecorder
from .state import TrainState
from .summary import about_evaluations, about_metrics

if TYPE_CHECKING:
    from .trainer import Trainer

EXPLODED = 1e6  # a cross entropy is far below, so a larger loss is on its way to infinity
PATIENCE = 20  # batches in a row without a finite gradient, after which leaving out batches is given up
ROLLBACKS = 5
SELDOM = 25  # steps between two looks, where a look makes the host wait for a GPU or for other processes


class LossWatch:
    """Remembers the first step whose loss is not finite or has exploded; only `found` waits for the device."""

    def __init__(self, device: torch.device, world: int = 1) -> None:
        self.device = device
        self.every = 1 if device.type == "cpu" and world == 1 else SELDOM
        self.reset()

    def reset(self) -> None:
        """Forget what was seen."""
        self.step = torch.full((), -1, dtype=torch.int64, device=self.device)
        self.terms = torch.zeros(0, device=self.device)
        self.names: tuple[str, ...] = ()

    @torch.no_grad()
    def see(self, number: int, losses: Losses) -> None:
        """Look at the terms of a step."""
        terms = torch.stack([term.detach().float() for term in losses.values()])
        if self.names != tuple(losses):
            self.names = tuple(losses)
            self.terms = torch.zeros_like(terms)
        first = (self.step < 0) & ~(terms.sum().abs() < EXPLODED)  # written so that NaN counts
        self.step = torch.where(first, number, self.step)
        self.terms = torch.where(first, terms, self.terms)

    def found(self) -> int | None:
        """The first bad step, if there was one."""
        step = int(self.step)
        return None if step < 0 else step

    def values(self) -> dict[str, float]:
        """The terms of the first bad step."""
        return dict(zip(self.names, self.terms.tolist(), strict=True))


def diverged(step: int, terms: dict[str, float], cause: str) -> str:
    """What happened and what helps, in one line."""
    shown = ", ".join(f"{name} {value:.4g}" for name, value in terms.items())
    bad = [value for value in terms.values() if not math.isfinite(value)]
    what = f"the loss is not finite in step {step}" if bad or not terms else f"the loss exploded in step {step}"
    return f"{what}{f' ({shown})' if shown else ''}: {cause}"


def find_cause(step: int, batch: Batch, terms: dict[str, float], mixed: str, config: TrainConfig) -> str:
    """The likely reason and its remedy. Before the first update the learning rate cannot be it."""
    for name, view in {"labeled": batch.x, **batch.views}.items():
        if rows := int((~view.isfinite().flatten(1).all(1)).sum()):
            what = f"{rows} {name} inputs of its batch hold NaN or infinite values"
            return f"{what}; correct the data or the augmentation"
    if config.lr <= 1 <= config.lr * config.weight_decay:
        return f"weight_decay ({config.weight_decay:g}) times lr ({config.lr:g}) is at least 1; lower weight_decay"
    if mixed == "fp16":
        return f"float16 holds numbers up to 65504; use precision fp32 or bf16, or an lr below {config.lr:g}"
    if step == 0:
        bad = [name for name, value in terms.items() if not abs(value) < EXPLODED]
        where = f"the term {' and '.join(bad)}" if bad else "the method"
        return f"no update was made yet, so look at {where} and at the starting weights"
    return f"the learning rate is too high; try lr {config.lr / 10:g} instead of {config.lr:g}, or clip_grad 1"


def refused_if_exploded(loss: Tensor) -> Tensor:
    """The loss, or NaN if it has exploded: its gradient is then not finite on any process, and all leave it out."""
    return loss * torch.where(loss.detach().abs() < EXPLODED, 1.0, math.nan)


def finite_gradient(modules: list[nn.Module]) -> bool:
    """Whether the gradient is finite; the host waits for the device to know."""
    grads = [p.grad for module in modules for p in module.parameters() if p.grad is not None]
    return bool(torch.stack([grad.detach().abs().sum() for grad in grads]).isfinite().all()) if grads else True


class Recovery(Callback):
    """What a run does when its loss is not finite: stop, go back to the last checkpoint, or leave out a batch."""

    def __init__(self, state: TrainState, batches: Batches, recorder: RunRecorder, config: TrainConfig) -> None:
        self.state = state
        self.batches = batches
        self.recorder = recorder
        self.config = config
        self.watch = LossWatch(state.device, state.world)

    def on_start(self, trainer: Trainer, start: int) -> None:
        """There must be a checkpoint to go back to."""
        if self.config.on_nan == "rollback" and self.recorder.last_checkpoint() is None:
            self.recorder.checkpoint(start)

    def bad_step(self, number: int, *, look: bool) -> int | None:
        """The first step whose loss is not finite on any process; `look` also where no look is due after `number`."""
        if not look and number % self.watch.every:
            return None
        if self.state.world > 1:
            steps = gather(self.watch.step[None])
            self.watch.step = steps[steps >= 0].min() if (steps >= 0).any() else self.watch.step
        return self.watch.found()

    def blame_weights(self, step: int, fault: Exception) -> Exception:
        """Return what a method raised because of weights that are not finite; raise anything else."""
        if all(bool(p.isfinite().all()) for module in self.state.modules for p in module.parameters()):
            raise fault
        self.watch.step.fill_(step)
        if self.state.world > 1:
            raise UserError(diverged(step, {}, self._cause(step, {}))) from fault
        return fault

    def recover(self, step: int, fault: Exception | None) -> int:
        """Stop with the reason, or go back to the last checkpoint with half the learning rate; returns its step."""
        counters = self.state.counters
        terms = self.watch.values()
        problem = diverged(step, terms, self._cause(step, terms))
        if self.config.on_nan != "rollback" or counters.lr_scale <= 0.5**ROLLBACKS:
            tried = f", also with lr × {counters.lr_scale:g}" if counters.lr_scale < 1 else ""
            saved = self.recorder.last_checkpoint()
            kept = f"; {self.config.out} keeps its checkpoint of step {saved}" if saved else ""
            raise UserError(f"{problem}{tried}{kept}") from fault
        scale = counters.lr_scale / 2
        warnings = list(counters.warnings)
        done = self.recorder.rewind()
        self.watch.reset()
        self.state.counters.lr_scale = scale
        self.state.counters.warnings = warnings
        self.state.warn(f"{problem}; went back to step {done}, and lr is × {scale:g} from there on")
        self.recorder.checkpoint(done)  # so that a run that is interrupted from here on continues the same way
        self.state.coreset_scheduler.resume(self.batches)
        return done

    def _cause(self, step: int, terms: dict[str, float]) -> str:
        seed_step(self.config.seed, step, self.state.accelerator.process_index)
        batch = self.batches.at(step)
        return find_cause(step, batch, terms, self.state.accelerator.mixed_precision, self.config)

    def buffers(self) -> list[Tensor]:
        """Running statistics and memories."""
        return [buffer for module in self.state.modules for buffer in module.buffers()]

    def leave_out(self, number: int, before: list[Tensor]) -> None:
        """Undo what the forward of a batch without a finite gradient did to running statistics and memories."""
        for buffer, old in zip(self.buffers(), before, strict=True):
            buffer.copy_(old)
        counters = self.state.counters
        counters.skipped += 1
        counters.skipped_in_row += 1
        if counters.skipped_in_row >= PATIENCE:
            raise self._given_up(number)

    @contextmanager
    def blame_skipped_batches(self, number: int) -> Iterator[None]:
        """If a measurement fails while batches are being left out, report what made that necessary."""
        try:
            yield
        except UserError as fault:
            skipping = self.state.counters.skipped_in_row
            raise (self._given_up(number) if skipping else fault) from fault.__cause__

    def _given_up(self, number: int) -> UserError:
        count = self.state.counters.skipped_in_row
        return UserError(f"{diverged(number, {}, self._cause(number, {}))}; leaving out {count} batches did not help")

    def warn_at_the_end(self, last: dict[str, Any]) -> None:
        """Warn about batches left out, and about what the last evaluation and the run folder show."""
        state = self.state
        steps = state.task.steps
        if skipped := state.counters.skipped:
            state.warn(f"{skipped} batches were left out, because their gradient was not finite; lower lr")
        state.warn(*about_metrics(last, steps, state.data.dataset.classes, state.calibrator.promise))
        if self.recorder.folder is not None and steps:
            state.warn(*about_evaluations(self.recorder.evaluations(), steps, self.config.eval_every))
