"""Trainer: the only training loop; a signal to stop makes it finish the step, save, report and exit."""

from __future__ import annotations

import copy
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Unpack

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
from ..utils.progress import phase
from ..utils.seeding import seed_step
from .callbacks import Callback, LiveView, ShowProgress
from .config import TrainConfig, TrainOptions, check_compatible, check_lazy, config_yaml
from .cross_fit import cross_fit, fit_linear_probe, naive_error, obstacle_to
from .distributed import autocast, average_gradients, gather, wait_for_everyone
from .hand_out import hand_out, scale_prior
from .interrupt import Interrupted, StopRequest
from .micro_batch import PROBE, fit_micro_batch
from .nonfinite import Recovery, finite_gradient, refused_if_exploded
from .optimizer import clip, learning_rate, set_learning_rate, warm_up_bn_momentum
from .pool_facts import about_doubt, asked_shares, late, open_set_weights, trusted_labels
from .recorder import RunRecorder
from .state import TrainState, make_task
from .summary import about_data, collect_metrics, summarize

PATIENCE = 10.0  # seconds after which no further step is timed


class Trainer:
    """Trains a model with a semi-supervised algorithm.

    `vcc_infuse.train` is the shorter way: it loads data, chooses by a preset, and makes the Trainer.

    Args:
        model: a backbone (WideResNet, SmallConv, MLP, Timm, or any module that maps a batch to features).
        algorithm: the semi-supervised method; FixMatch if not given.
        calibrator: decides how far a pseudo label is trusted; the softmax confidence if not given.
        selector: chooses the unlabeled examples to train on; all of them if not given.
        config: every other option; see TrainConfig.
        callbacks: further observers of the run; see Callback.
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
        *,
        callbacks: Sequence[Callback] = (),
        **options: Unpack[TrainOptions],
    ) -> None:
        self.model = model
        self.algorithm = algorithm or FixMatch()
        self.calibrator = calibrator or Softmax()
        self.selector = selector
        self.callbacks = tuple(callbacks)
        config = (config or TrainConfig()).updated(**options)
        ratio = config.unlabeled_ratio or self.algorithm.unlabeled_ratio
        self.config = config.updated(unlabeled_ratio=ratio)
        check_compatible(self.algorithm, self.calibrator, selector)
        check_lazy(self.algorithm, config.lazy)
        full = 0 if isinstance(self.algorithm, ClosedForm) else config.steps
        self.steps = selector.steps(full) if selector else full
        self.schedule_steps = selector.schedule_steps(config.steps) if selector else config.steps

    def twin(self, **options: Any) -> Trainer:
        """A trainer of the same method that shows and writes nothing; `options` of TrainConfig may differ."""
        quiet = {"out": None, "tracker": "none", "progress": False, "report": False, "cross_fit": False}
        on_nan = "stop" if self.config.on_nan == "rollback" else self.config.on_nan  # there is no checkpoint
        memory = {"memory": None, "micro_batch": self.micro_batch_}
        config = self.config.updated(**quiet, **memory, on_nan=on_nan, compile=False, **options)
        return Trainer(self.model, self.algorithm, self.calibrator, copy.deepcopy(self.selector), config)

    def fit(
        self, data: SSLData, *, config: str | None = None, resume: bool = False, force: bool = False
    ) -> dict[str, Any]:
        """Train.

        Args:
            data: labeled examples, the pool, and the test set if there is one.
            config: the text of config.yaml, if the run was put together elsewhere.
            resume: continue the run in the folder `out`. A finished run with fewer steps than this trainer is
                extended: its last checkpoint is trained on. Options, data and number of processes must be the same.
            force: continue although they are not.

        Returns:
            What summary.json holds; empty on all but the first of several processes.
        """
        # The first of several processes holds the lock for all.
        first = os.environ.get("RANK", "0") == "0"
        out = self.config.out
        with RunFolder(out).locked() if out and first else nullcontext():
            self.prepare(data, resume=resume)
            try:
                text = config or (self._config_yaml() if out else "")
                start = self.recorder_.open(text, resume=resume, force=force)
                near = self.config.report and self.state_.data.dataset.bank is not None
                with phase("comparing the images with those to test", shown=near and self.config.progress):
                    warnings = list(about_data(self.state_.data, out, near=near))
                self.state_.warn(*warnings)
                if self.config.doubt == "weigh":
                    self.state_.warn(*about_doubt(data, self.state_.data))
                self._notify("on_start", start)
                self._run(start)
                self._hand_out(data)
                return self._finish()
            finally:
                self._notify("on_end")

    def prepare(self, data: SSLData, *, resume: bool = False, config: TrainConfig | None = None) -> None:
        """Build the state, the batches and the recorder, without taking a step; `config` replaces that of the run."""
        config = config or self.config
        if resume and config.out and RunFolder(config.out).has_checkpoint():
            config = config.updated(init=None)  # the checkpoint holds the weights, and that run may be gone
        data = data.with_all_labels() if self.algorithm.all_labels else data
        data = trusted_labels(data) if config.doubt == "weigh" else data
        data = data.hold_out(self.calibrator.held_out) if self.calibrator.held_out else data
        if self.algorithm.views and not len(data.split.pool):
            name = type(self.algorithm).__name__
            raise UserError(
                f"no unlabeled image is left for {name}, because every image is labeled; show fewer labels, leave out "
                "include_labeled false, or choose --algorithm Supervised"
            )
        task = make_task(data, self.steps, config)
        parts = (self.selector, *self.algorithm.modules(), *self.calibrator.modules())
        task = replace(task, pool_shares=asked_shares(parts, data, task.label_counts))
        state = TrainState(data, self.model, self.algorithm, self.calibrator, self.selector, task=task, config=config)
        self.state_ = state
        self.batches_ = Batches(
            data,
            state.views,
            self.algorithm.views,
            self.calibrator.labeled_views,
            batch_size=task.batch_size,
            unlabeled_batch_size=task.unlabeled_batch_size,
            seed=config.seed,
            rank=state.accelerator.process_index,
            world=state.world,
            device=state.device,
            lazy=config.lazy,
        )
        self.open_set_ = open_set_weights(data).to(state.device) if config.open_set == "auto" else None
        self.recorder_ = RunRecorder(config.out, state, self.batches_, report=config.report)
        self.recovery_ = Recovery(state, self.batches_, self.recorder_, config)
        self.micro_batch_ = config.micro_batch or self._fit_memory()
        self.last_metrics_: dict[str, Any] = {}
        self._callbacks = [self.recorder_, LiveView(), self.recovery_, ShowProgress(), *self.callbacks]

    def _fit_memory(self) -> int | None:
        """Examples per forward and backward that keep a step within `memory`; the whole batch without that option."""
        if self.config.memory is None:
            return None
        state = self.state_
        raw = self.batches_.rows(state.data.split.labeled[np.zeros(PROBE, dtype=np.int64)])
        plain = self.batches_.views("plain", raw)
        return fit_micro_batch(self.config.memory, state.model, plain, state.task, state.optimizer)

    def seconds_per_step(self, data: SSLData, count: int = 2) -> float:
        """Time a few steps from random weights; `fit` starts over."""
        if not self.steps:
            return 0.0
        options = self.config.updated(out=None, tracker="none", on_nan="stop", head_init="random", init=None)
        self.prepare(data, config=options)
        seconds: list[float] = []
        while len(seconds) <= count and sum(seconds) < PATIENCE:
            began = time.perf_counter()
            self.train_step(len(seconds))
            seconds.append(time.perf_counter() - began)
        return float(np.median(seconds[1:] or seconds))  # the first step warms up

    def _run(self, start: int) -> None:
        """The steps from `start` on."""
        self.state_.coreset_scheduler.resume(self.batches_)
        done = start
        with StopRequest() as request:
            while done < self.steps:
                fault = self._refresh_and_train(done)
                done += 1
                self._notify("on_step", done)
                stop = self._should_stop(request, done - 1)
                look = stop or fault is not None or self._evaluation_due(done)
                if (bad := self.recovery_.bad_step(done - 1, look=look)) is not None:
                    done = self.recovery_.recover(bad, fault)
                    self._notify("on_rewind", done)
                    continue
                if self._evaluation_due(done):
                    self._evaluate(done)
                if stop:
                    self._leave(done, request)
        if self.steps == 0 and not self.recorder_.resumed:
            self._evaluate(0)

    def _refresh_and_train(self, number: int) -> Exception | None:
        """One step. An exception that non-finite weights have caused is returned, so that the weights are reported."""
        try:
            self.refresh_coreset(number)
            self.train_step(number)
        except Exception as fault:
            return self.recovery_.blame_weights(number, fault)
        return None

    def refresh_coreset(self, number: int) -> None:
        """Select a new core set, or resample the present one, if step `number` asks for it."""
        state = self.state_
        scheduler = state.coreset_scheduler
        due = scheduler.due(number)
        if not (due or scheduler.resample_due(number)):
            return
        pool = Pool(
            batches=self.batches_,
            model=state.model,
            ema=state.ema.module,
            algorithm=state.algorithm,
            calibrator=state.calibrator,
            task=state.task,
            number=number,
            gather=gather,
            autocast=partial(autocast, state.accelerator),
        )
        if due:
            self._notify("on_selection", *scheduler.refresh(pool, self.batches_, state.data.hidden_truth))
        else:
            scheduler.resample(pool, self.batches_)

    def train_step(self, number: int) -> None:
        """Train on one batch: usually one optimizer step, or as many as the method yields losses."""
        began = time.perf_counter()
        state = self.state_
        config = self.config
        seed_step(config.seed, number, state.accelerator.process_index)
        warm_up_bn_momentum(state.bn_momentum, number)
        rate = learning_rate(config, number, self.schedule_steps)
        batch = self.batches_.at(number)
        if self.open_set_ is not None:
            weights = late(self.open_set_[batch.pool_ids], number / self.steps)
            batch = batch._replace(weights=batch.weights * weights)
        step = Step(
            batch=batch,
            model=state.forward,
            ema=state.ema.module,
            calibrate=state.calibrator,
            number=number,
            steps=self.steps,
            joint=config.joint_bn,
            gather=gather,
            micro_batch=self.micro_batch_,
            lazy=config.lazy,
        )
        losses = state.algorithm.losses(step)
        before = [buffer.clone() for buffer in self.recovery_.buffers()] if config.on_nan == "skip" else None
        while (terms := self._next_losses(losses)) is not None:  # none without steps, and no optimizer
            set_learning_rate(state.optimizer, state.counters.lr_scale * rate)
            if not self._apply_gradients(terms.total(), may_skip=before is not None):
                self.recovery_.leave_out(number, before or [])
                break
            self.recovery_.watch.see(number, terms)
            state.stats.add(terms, state.truth[step.batch.pool_ids])
        else:
            state.counters.skipped_in_row = 0
            state.ema.update(state.model, number)
            state.stats.steps += 1
        state.counters.train_seconds += time.perf_counter() - began

    def _next_losses(self, losses: Iterator[Losses]) -> Losses | None:
        with autocast(self.state_.accelerator):
            return next(losses, None)

    def _apply_gradients(self, loss: Tensor, may_skip: bool = False) -> bool:
        """One optimizer step, with the gradient averaged over processes; with `may_skip` only if that is finite."""
        state = self.state_
        state.optimizer.zero_grad(set_to_none=True)
        scaler = state.accelerator.scaler
        loss = refused_if_exploded(loss) if may_skip else loss
        # Not by accelerate's backward and optimizer, which look for optional packages on disk at every call.
        (loss if scaler is None else scaler.scale(loss)).backward()
        average_gradients(state.modules, state.model)
        if may_skip and scaler is None and not finite_gradient(state.modules):  # a scaler leaves out such steps itself
            return False
        if scaler is None:
            clip(state.modules, self.config.clip_grad)
            state.optimizer.step()
        else:
            scaler.unscale_(state.optimizer)  # or the gradient would be clipped at a multiple of the limit
            clip(state.modules, self.config.clip_grad)
            scaler.step(state.optimizer)
            scaler.update()
        return True

    def _evaluation_due(self, done: int) -> bool:
        return done == self.steps or done % self.config.eval_every == 0

    def _evaluate(self, done: int) -> None:
        """Measure; the recorder writes the line and the checkpoint."""
        with self.recovery_.blame_skipped_batches(done - 1):
            self.last_metrics_ = collect_metrics(self.state_, done, self.config)
        self._notify("on_evaluation", self.last_metrics_)

    def _should_stop(self, request: StopRequest, number: int) -> bool:
        """Whether to leave now; several processes compare every ten steps, so that all leave together."""
        if self.state_.world > 1:
            if number % 10:
                return False
            received = gather(torch.tensor([request.signal or 0], device=self.state_.device)).max()
            request.signal = int(received) or None
        return request.signal is not None

    def _leave(self, done: int, request: StopRequest) -> None:
        """Save the state as it is after `done` steps, and say how to go on."""
        self.state_.sync_stats()
        self.recorder_.checkpoint(done)
        raise self._interrupted(f"after step {done} of {self.steps}", request.signal or 0)

    def _interrupted(self, when: str, signal_number: int) -> Interrupted:
        """How to go on, after the state was saved."""
        out = self.config.out
        saved = f"saved; continue with: vcc-infuse train --resume {out}" if out else "nothing saved: no run folder"
        return Interrupted(f"interrupted {when}; {saved}", signal_number)

    def _hand_out(self, data: SSLData) -> None:
        """Cross-validate the run on its labels, if asked for, and let that decide what is evaluated and saved."""
        state = self.state_
        if self.config.cross_fit is False:
            return
        obstacle = obstacle_to(self, data)
        try:
            answers = cross_fit(self, data, partial(self._notify, "on_fold")) if obstacle is None else []
        except (KeyboardInterrupt, Interrupted) as stop:
            raise self._interrupted("while cross-validating", getattr(stop, "signal", signal.SIGINT)) from stop
        except UserError as fault:  # the run itself is fine, and is not lost because one with fewer labels is not
            if getattr(fault, "every_process", False):
                raise
            obstacle = str(fault)
        if obstacle is None:
            probe = fit_linear_probe(self)
            prior = scale_prior(self.algorithm, self.config)
            state.handed_out = hand_out(answers, state.classifier(), probe, state.calibrator, prior)
            state.handed_out.cross_validated.update(naive_error(self))
        if self.config.progress and state.main:
            print(state.handed_out.describe() if state.handed_out else f"not cross-validated: {obstacle}", flush=True)

    def _finish(self) -> dict[str, Any]:
        if not self.last_metrics_:  # resumed after the last evaluation, before the summary was written
            self.last_metrics_ = self.recorder_.last_evaluation()
        if not self.state_.main:
            return {}
        self.recovery_.warn_at_the_end(self.last_metrics_)
        summary = summarize(self.state_, self.last_metrics_, self.config)
        self._notify("on_finish", summary)
        return summary

    def _notify(self, event: str, *details: Any) -> None:
        for callback in self._callbacks:
            getattr(callback, event)(self, *details)

    def predictor(self) -> Predictor:
        """The trained classifier (averaged weights)."""
        return self.state_.predictor()

    def close(self) -> None:
        """Leave the process group in good order; nothing to do for a single process.

        All leave together: where one is aborted by torch as it ends, a launcher ends the others, and the first of them
        would still be writing.
        """
        wait_for_everyone(self.state_.accelerator)
        self.state_.accelerator.end_training()

    def _config_yaml(self) -> str:
        dataset = self.state_.data.dataset
        data = {"data": dataset.name, "flip": dataset.flip, "augment": dataset.augment}
        parts = {name: getattr(self, name) for name in ("model", "algorithm", "calibrator", "selector")}
        return config_yaml(data, parts, self.config)
