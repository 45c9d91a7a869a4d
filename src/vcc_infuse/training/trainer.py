"""Trainer: the only training loop."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..algorithms import Algorithm, FixMatch
from ..algorithms.baselines import ClosedForm
from ..calibrators import Calibrator, Softmax
from ..data.batches import Batches
from ..data.ssl_data import SSLData
from ..errors import UserError
from ..inference.predictor import Predictor
from ..runs.folder import RunFolder
from ..selectors import Selector
from ..selectors.pool import Pool
from ..types import Losses, Step
from ..utils.progress import TrainingProgress
from ..utils.seeding import seed_step
from .config import TrainConfig, check_compatible, check_lazy
from .distributed import average_gradients, gather
from .ema import warm_up_bn_momentum
from .micro_batch import PROBE, fit_micro_batch
from .nonfinite import about_data, finite, finite_gradient, refused_if_exploded
from .optimizer import clip, learning_rate, set_learning_rate
from .recorder import RunRecorder, config_yaml
from .recovery import Recovery
from .signals import Interrupted, StopRequest, stop_request
from .state import TrainState, make_task
from .summary import collect_metrics, summarize


class Trainer:
    """Trains a model with a semi-supervised algorithm.

    Args:
        model: a backbone (WideResNet, SmallConv, MLP, Timm, or any module that maps a batch to features).
        algorithm: the semi-supervised method; FixMatch if not given.
        calibrator: decides how far a pseudo label is trusted; the softmax confidence if not given.
        selector: chooses the unlabeled examples to train on; all of them if not given.
        config: every other option; see TrainConfig.
        options: fields of TrainConfig that override those of `config`.

    Example:
        >>> from vcc_infuse import FixMatch, SmallConv, Trainer
        >>> trainer = Trainer(SmallConv(), FixMatch(threshold=0.9), steps=200, batch_size=16)
        >>> trainer.config.steps
        200
    """

    def __init__(
        self,
        model: nn.Module,
        algorithm: Algorithm | None = None,
        calibrator: Calibrator | None = None,
        selector: Selector | None = None,
        config: TrainConfig | None = None,
        **options: Any,
    ) -> None:
        self.model, self.algorithm, self.calibrator = model, algorithm or FixMatch(), calibrator or Softmax()
        self.selector = selector
        config = (config or TrainConfig()).updated(**options)
        ratio = config.unlabeled_ratio or self.algorithm.unlabeled_ratio
        self.config = config.updated(unlabeled_ratio=ratio)
        check_compatible(self.algorithm, self.calibrator, selector)
        check_lazy(self.algorithm, config.lazy)
        full = 0 if isinstance(self.algorithm, ClosedForm) else config.steps
        self.steps = selector.steps(full) if selector else full
        self.schedule_steps = selector.schedule_steps(config.steps) if selector else config.steps

    def fit(
        self, data: SSLData, *, config: str | None = None, resume: bool = False, force: bool = False
    ) -> dict[str, Any]:
        """Train on `data` and return the summary. `config` is the text of config.yaml; `resume` continues `out`.

        A finished run with fewer steps than this trainer is extended: its last checkpoint is trained on. Options, data
        and number of processes must be those of the run to continue, unless `force` is set.
        """
        with self._lock():
            self.prepare(data, resume)
            with closing(self.recorder_):
                start = self.recorder_.open(config or self._config_yaml(), resume, force)
                self.state_.warn(*about_data(self.state_.data, self.config.out))
                if self.config.on_nan == "rollback" and self.recorder_.last_checkpoint() is None:
                    self.recorder_.checkpoint(start)
                return self._run(start)

    def _lock(self) -> AbstractContextManager[None]:
        """The run folder for this run alone; the first of several processes holds it for all."""
        if self.config.out is None or os.environ.get("RANK", "0") != "0":
            return nullcontext()
        return RunFolder(self.config.out).locked()

    def prepare(self, data: SSLData, resume: bool = False) -> None:
        """Build the state, the batches and the recorder, without taking a step."""
        config = self.config
        if resume and config.out and RunFolder(config.out).has_checkpoint():
            config = config.updated(init=None)  # the checkpoint holds the weights, and that run may be gone
        data = data.with_all_labels() if self.algorithm.all_labels else data
        data = data.hold_out(self.calibrator.held_out) if self.calibrator.held_out else data
        if self.algorithm.views and not len(data.split.pool):
            name = type(self.algorithm).__name__
            raise UserError(
                f"no unlabeled image is left for {name}, because every image is labeled; show fewer labels, leave out "
                "include_labeled false, or choose --algorithm Supervised"
            )
        task = make_task(data, self.steps, config)
        state = TrainState(data, self.model, self.algorithm, self.calibrator, self.selector, task=task, config=config)
        self.batches_ = Batches(
            data, state.views, self.algorithm.views, self.calibrator.labeled_views, batch_size=task.batch_size,
            unlabeled_batch_size=task.unlabeled_batch_size, seed=config.seed,
            rank=state.accelerator.process_index, world=state.world, device=state.device, lazy=config.lazy,
        )  # fmt: skip
        self.state_, self.recorder_ = state, RunRecorder(config.out, state, config.report)
        self.recovery_ = Recovery(state, self.batches_, self.recorder_, config)
        self.micro_batch_ = config.micro_batch or self._fit_memory()
        self.last_metrics_: dict[str, Any] = {}

    def _fit_memory(self) -> int | None:
        """Examples per forward and backward that keep a step within `memory`; the whole batch without that option."""
        state, memory = self.state_, self.config.memory
        if memory is None:
            return None
        raw = self.batches_.rows(state.data.split.labeled[np.zeros(PROBE, dtype=np.int64)])
        return fit_micro_batch(memory, state.model, self.batches_.views("plain", raw), state.task, state.optimizer)

    def _run(self, start: int) -> dict[str, Any]:
        """The steps from `start` on."""
        state = self.state_
        state.coreset_scheduler.resume(self.batches_)
        progress = TrainingProgress(self.steps, start, self.config.progress and state.main)
        with stop_request() as request:
            done = start
            while done < self.steps:
                number, done = done, done + 1
                fault = self._refresh_and_train(number)
                progress.step(state.stats.read() if progress.due(number) else None)
                stop = self._should_stop(request, number)
                look = self._evaluation_due(done) or stop or state.watch.due(number) or fault is not None
                if look and (bad := self.recovery_.bad_step()) is not None:
                    done = self.recovery_.recover(bad, fault)
                    progress.back_to(done)
                    continue
                if self._evaluation_due(done):
                    progress.evaluated(done, self._evaluate(done))
                if stop:
                    progress.close()
                    self._leave(done, request)
        progress.close()
        if self.steps == 0:
            self._evaluate(0)
        return self._finish()

    def _refresh_and_train(self, number: int) -> Exception | None:
        """One step. What a method says about numbers that come from weights that are not finite is returned."""
        try:
            self.refresh_coreset(number)
            self.train_step(number)
        except Exception as fault:
            if finite(self.state_.modules):
                raise
            return self.recovery_.blame_weights(number, fault)
        return None

    def refresh_coreset(self, number: int) -> None:
        """Select a new core set, or resample the present one, if step `number` asks for it."""
        state, scheduler = self.state_, self.state_.coreset_scheduler
        due = scheduler.due(number)
        if not (due or scheduler.resample_due(number)):
            return
        pool = Pool.of(
            self.batches_, state.model, state.ema.module, state.algorithm, state.calibrator, state.task, number,
            gather, state.accelerator.autocast,
        )  # fmt: skip
        if due:
            self.recorder_.selection(*scheduler.refresh(pool, self.batches_, state.data.hidden_truth))
        else:
            scheduler.resample(pool, self.batches_)

    def train_step(self, number: int) -> None:
        """Train on one batch: usually one optimizer step, or as many as the method yields losses."""
        began, state, config = time.perf_counter(), self.state_, self.config
        seed_step(config.seed, number, state.accelerator.process_index)
        warm_up_bn_momentum(state.bn_momentum, number)
        set_learning_rate(state.optimizer, state.lr_scale * learning_rate(config, number, self.schedule_steps))
        step = Step(
            self.batches_.at(number), state.forward, state.ema.module, state.calibrator, number, self.steps,
            config.joint_bn, gather, self.micro_batch_, lazy=config.lazy,
        )  # fmt: skip
        losses = state.algorithm.losses(step)
        before = self.recovery_.buffers() if config.on_nan == "skip" else None
        while (terms := self._next_losses(losses)) is not None:
            if not self._apply_gradients(terms.total(), may_skip=before is not None):
                self.recovery_.leave_out(number, before or [])
                break
            state.watch.see(number, terms)
            state.stats.add(terms, state.truth[step.batch.pool_ids])
        else:
            state.skipped_in_row = 0
            state.ema.update(state.model, number)
            state.stats.steps += 1
        state.train_seconds += time.perf_counter() - began

    def _next_losses(self, losses: Iterator[Losses]) -> Losses | None:
        with self.state_.accelerator.autocast():
            return next(losses, None)

    def _apply_gradients(self, loss: Tensor, may_skip: bool = False) -> bool:
        """One optimizer step, with the gradient averaged over processes; with `may_skip` only if that is finite."""
        state = self.state_
        state.optimizer.zero_grad(set_to_none=True)
        scaler = state.accelerator.scaler
        loss = refused_if_exploded(loss) if may_skip else loss
        # Not accelerator.backward, which looks for optional packages on disk at every call.
        (loss if scaler is None else scaler.scale(loss)).backward()
        average_gradients(state.modules, state.model)
        if may_skip and scaler is None and not finite_gradient(state.modules):  # a scaler leaves out such steps itself
            return False
        clip(state.modules, self.config.clip_grad)
        state.optimizer.step()
        return True

    def _evaluation_due(self, done: int) -> bool:
        return done == self.steps or done % self.config.eval_every == 0

    def _evaluate(self, done: int) -> dict[str, Any]:
        """Measure, record, save."""
        with self.recovery_.in_vain(done - 1):
            self.last_metrics_ = collect_metrics(self.state_, done, self.config)
        self.recorder_.evaluation(self.last_metrics_)
        self.recorder_.checkpoint(done)
        return self.last_metrics_

    def _should_stop(self, request: StopRequest, number: int) -> bool:
        """Whether to leave now; several processes compare every ten steps, so that all leave together."""
        if self.state_.world > 1:
            if number % 10:
                return False
            received = gather(torch.tensor([request.signal or 0], device=self.state_.device)).max()
            request.signal = int(received) or None
        return request.signal is not None

    def _leave(self, done: int, request: StopRequest) -> None:
        self.state_.sync_stats()
        self.recorder_.checkpoint(done)
        out = self.config.out
        saved = f"saved; continue with: vcc-infuse train --resume {out}" if out else "nothing saved: no run folder"
        raise Interrupted(f"interrupted after step {done} of {self.steps}; {saved}", request.signal or 0)

    def _finish(self) -> dict[str, Any]:
        if not self.last_metrics_:  # resumed after the last evaluation, before the summary was written
            self.last_metrics_ = self.recorder_.last_evaluation()
        if not self.state_.main:
            return {}
        self.recovery_.warn_at_the_end(self.last_metrics_)
        summary = summarize(self.state_, self.last_metrics_, self.config)
        self.recorder_.finish(summary)
        return summary

    def predictor(self) -> Predictor:
        """The trained classifier (averaged weights)."""
        return self.state_.predictor()

    def close(self) -> None:
        """Leave the process group in good order; nothing to do for a single process."""
        self.state_.accelerator.end_training()

    def _config_yaml(self) -> str:
        return config_yaml(
            self.state_.data.dataset, self.config, model=self.model, algorithm=self.algorithm,
            calibrator=self.calibrator, selector=self.selector,
        )  # fmt: skip
