"""Trainer: the only training loop."""

from __future__ import annotations

import math
import time
from contextlib import closing
from typing import Any, Literal

import torch
from torch import nn

from .algorithms import Algorithm, FixMatch
from .calibrators import Calibrator, Softmax
from .data.batches import Batches
from .data.ssl import SSLData
from .descent import take_step
from .figures import summarise, take_figures
from .interrupt import Interrupted, Request, stop_request
from .journal import Journal, config_text
from .optimise import learning_rate
from .parts import Parts, make_task
from .predictor import Predictor
from .processes import gather, seed_step
from .progress import Progress
from .selectors import Pool, Selector
from .settings import check_fit, check_settings
from .types import Step


class Trainer:
    """Trains a model with a semi-supervised algorithm.

    Args:
        model: a backbone (WideResNet, SmallConv, MLP, Timm, or any module that turns a batch into features).
        algorithm: the semi-supervised method; FixMatch if not given.
        calibrator: what decides how far a pseudo label is trusted; the softmax confidence if not given.
        selector: what chooses the unlabelled examples to train on; all of them if not given.
        steps: optimiser steps of the full run; a selector that keeps a part takes that part of them.
        epochs: parts into which the run is cut; evaluations and refreshes count in them.
        eval_every: epochs between two evaluations, on the test set where there is one.
        batch: labelled examples a step, over all processes.
        ratio: unlabelled examples for each labelled one; the method's own default if not given.
        lr: learning rate at the start.
        momentum: Nesterov momentum.
        weight_decay: L2 penalty on matrices (not on biases and BatchNorm).
        schedule: "cosine" is lr·cos(7πk/16K); "constant" keeps lr.
        ema: decay of the averaged weights that are evaluated and saved.
        joint_bn: one forward for all views, with shared BatchNorm statistics (slower).
        precision: "auto" takes bf16 where the hardware has it; or fp32, bf16, fp16.
        compile: compile the model (takes a while to warm up).
        cpu: use the CPU even where there is a GPU.
        seed: of the initial weights, the order of the data and every random draw.
        bins: bins of the calibration figures.
        out: run folder; nothing is written if not given.
        tensorboard: the same as tracker="tensorboard".
        tracker: also show figures and reliability diagrams live in "tensorboard" (needs the extra `track`) or
            "wandb" (needs the extra `wandb`).
        report: draw report.html in the run folder at the end.
        progress: show a progress bar or, away from a terminal, a few lines.
    """

    def __init__(
        self,
        model: nn.Module,
        algorithm: Algorithm | None = None,
        calibrator: Calibrator | None = None,
        selector: Selector | None = None,
        *,
        steps: int = 2**20,
        epochs: int = 1024,
        eval_every: int = 5,
        batch: int = 64,
        ratio: int | None = None,
        lr: float = 0.03,
        momentum: float = 0.9,
        weight_decay: float = 5e-4,
        schedule: Literal["cosine", "constant"] = "cosine",
        ema: float = 0.999,
        joint_bn: bool = False,
        precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto",
        compile: bool = False,
        cpu: bool = False,
        seed: int = 0,
        bins: int = 15,
        out: str | None = None,
        tensorboard: bool = False,
        tracker: Literal["none", "tensorboard", "wandb"] = "none",
        report: bool = True,
        progress: bool = True,
    ) -> None:
        self.model, self.algorithm, self.calibrator = model, algorithm or FixMatch(), calibrator or Softmax()
        self.selector = selector
        ratio = self.algorithm.ratio if ratio is None else ratio
        self.settings: dict[str, Any] = dict(
            steps=steps, epochs=epochs, eval_every=eval_every, batch=batch, ratio=ratio, lr=lr, momentum=momentum,
            weight_decay=weight_decay, schedule=schedule, ema=ema, joint_bn=joint_bn, precision=precision,
            compile=compile, cpu=cpu, seed=seed, bins=bins, out=out, tensorboard=tensorboard, tracker=tracker,
            report=report, progress=progress,
        )  # fmt: skip
        self.seed, self.bins, self.out = seed, bins, out
        check_settings(self.settings)
        check_fit(self.algorithm, self.calibrator, selector)
        self.steps = selector.steps(steps) if selector else steps
        self.schedule_steps = selector.schedule_steps(steps) if selector else steps
        self.epoch = math.ceil(self.steps / epochs)

    def fit(self, data: SSLData, *, config: str | None = None, resume: bool = False) -> dict[str, Any]:
        """Train on `data` and return the summary. `config` is the text of config.yaml; `resume` continues `out`."""
        self._build(data)
        start = self.journal_.open(config or self._config(), resume)
        with closing(self.journal_):
            return self._run(start)

    def _run(self, start: int) -> dict[str, Any]:
        """The steps from `start` on."""
        self.parts_.refresher.resume(self.batches_)
        progress = Progress(self.steps, start, self.settings["progress"] and self.parts_.main)
        with stop_request() as request:
            for number in range(start, self.steps):
                self._refresh(number)
                self._step(number)
                progress.advance(self.parts_.tally.read() if progress.due(number) else None)
                if self._evaluation_due(number + 1):
                    progress.evaluated(number + 1, self._evaluate(number + 1))
                if self._asked_to_stop(request, number):
                    progress.close()
                    self._leave(number + 1, request)
        progress.close()
        return self._finish()

    def predictor(self) -> Predictor:
        """The trained classifier (averaged weights)."""
        return self.parts_.predictor()

    def close(self) -> None:
        """Leave the group of processes in good order; nothing to do for a single one."""
        self.parts_.accelerator.end_training()

    def _build(self, data: SSLData) -> None:
        own = self.settings
        data = data.with_all_labels() if self.algorithm.all_labels else data
        data = data.hold_out(self.calibrator.held_out) if self.calibrator.held_out else data
        task = make_task(data, self.steps, self.epoch, own["batch"], own["ratio"])
        self.parts_ = Parts(data, self.model, self.algorithm, self.calibrator, self.selector, task=task, settings=own)
        self.journal_ = Journal(self.out, self.parts_, own["report"])
        self.rank_ = self.parts_.accelerator.process_index
        self.batches_ = Batches(
            data, self.parts_.views, self.algorithm.views, self.calibrator.labelled_views,
            batch=task.batch, unlabelled=task.unlabelled_batch, seed=self.seed,
            rank=self.rank_, world=self.parts_.world, device=self.parts_.device,
        )  # fmt: skip
        self.last_: dict[str, Any] = {}

    def _refresh(self, number: int) -> None:
        """Choose the core set anew, or draw another one, if it is time."""
        parts = self.parts_
        due = parts.refresher.due(number)
        if not (due or parts.refresher.passed(number)):
            return
        pool = Pool.of(
            self.batches_, parts.model, parts.ema.module, parts.algorithm, parts.calibrator, parts.task, number,
            gather, parts.accelerator.autocast,
        )  # fmt: skip
        if due:
            self.journal_.selection(*parts.refresher.renew(pool, self.batches_, parts.data.pool_truth))
        else:
            parts.refresher.redraw(pool, self.batches_)

    def _step(self, number: int) -> None:
        """Train on one batch."""
        began, parts = time.perf_counter(), self.parts_
        seed_step(self.seed, number, self.rank_)
        step = Step(
            self.batches_.at(number), parts.forward, parts.ema.module, parts.calibrator,
            number, self.steps, self.epoch, self.settings["joint_bn"], gather,
        )  # fmt: skip
        rate = learning_rate(self.settings["lr"], number, self.schedule_steps, self.settings["schedule"])
        take_step(parts, step, rate)
        parts.seconds += time.perf_counter() - began

    def _evaluation_due(self, done: int) -> bool:
        return done == self.steps or done % (self.epoch * self.settings["eval_every"]) == 0

    def _evaluate(self, done: int) -> dict[str, Any]:
        """Measure, note, save."""
        self.last_ = take_figures(self.parts_, done, self.epoch, self.bins, self.settings["lr"])
        self.journal_.evaluation(self.last_)
        self.journal_.checkpoint(done)
        return self.last_

    def _asked_to_stop(self, request: Request, number: int) -> bool:
        """Whether to leave now; several processes compare notes every ten steps, so that all leave together."""
        if self.parts_.world > 1:
            if number % 10:
                return False
            asked = gather(torch.tensor([request.signal or 0], device=self.parts_.device)).max()
            request.signal = int(asked) or None
        return request.signal is not None

    def _leave(self, done: int, request: Request) -> None:
        self.parts_.agree()
        self.journal_.checkpoint(done)
        saved = f"saved; continue with: vcc-infuse train --resume {self.out}" if self.out else "nothing saved: no --out"
        raise Interrupted(f"interrupted after step {done} of {self.steps}; {saved}", request.signal or 0)

    def _finish(self) -> dict[str, Any]:
        if not self.last_:  # resumed after the last evaluation, before the summary was written
            self.last_ = self.journal_.last_evaluation()
        if not self.parts_.main:
            return {}
        summary = summarise(self.parts_, self.last_, self.seed, self.bins)
        self.journal_.finish(summary)
        return summary

    def _config(self) -> str:
        return config_text(
            self.parts_.data.dataset.name, self.settings, model=self.model, algorithm=self.algorithm,
            calibrator=self.calibrator, selector=self.selector,
        )  # fmt: skip
