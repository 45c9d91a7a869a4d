"""RunRecorder: what a run writes, while it trains and when it ends."""

from __future__ import annotations

import csv
import io
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml
from torch import Tensor

from ..data.batches import Batches
from ..errors import UserError
from ..runs import checkpoint
from ..runs.fingerprint import Fingerprint, compare, content_digest, options_of, refuse, used_rows
from ..runs.folder import RunFolder
from ..runs.gallery import cells, last_scores, mistakes, ranked
from ..selectors.pool import Pool
from ..selectors.ranking import Selection
from ..utils.io import Columns, append_jsonl, npz_bytes, read_jsonl, reading, save_npz, table_cell
from ..utils.seeding import preserve_mode_and_rng
from .callbacks import Callback
from .distributed import wait_for_everyone
from .state import TrainState

if TYPE_CHECKING:
    from .trainer import Trainer


class RunRecorder(Callback):
    """The run folder of one run, as the training loop sees it; silent without a folder and on other processes.

    The batches are for what a selector stores to rank further images.
    """

    def __init__(self, out: str | None, state: TrainState, batches: Batches, *, report: bool = True) -> None:
        self.folder = RunFolder(out) if out else None
        self.state = state
        self.batches = batches
        self.report = report
        self.fingerprint: Fingerprint | None = None
        self.config = ""
        self.resumed = False
        self.recorded = 0
        """The step of the last evaluation that was recorded before this process."""

    @property
    def writes(self) -> bool:
        """Whether this process writes files."""
        return self.folder is not None and self.state.main

    def open(self, config: str, *, resume: bool, force: bool = False) -> int:
        """Create the folder, or reopen it and restore the state; returns the step to start from.

        A run to resume must be the same run; `force` continues it anyway and says what differs. A folder without
        a checkpoint starts from the beginning.
        """
        if self.folder is None:
            if resume:
                raise UserError("resume=True needs the folder of the run: Trainer(out=…)")
            return 0
        self.config = config
        rows = used_rows(self.state.data)
        self.fingerprint = fingerprint(self.state, options_of(yaml.safe_load(config)), rows)
        saved = None
        if resume:
            self._check(self.folder, rows, force)
            saved = self._restore(self.folder)
        self.resumed = saved is not None
        step = saved or 0
        wait_for_everyone(self.state.accelerator)
        if self.writes:
            if resume:
                self._reopen(self.folder, step, force)
            else:
                self.folder.check_free()
            if not self.resumed:
                listed = io.StringIO()  # names with tabs or line ends are quoted
                cells = ((table_cell(path), table_cell(reason)) for path, reason in self.state.data.dataset.skipped)
                csv.writer(listed, "excel-tab", lineterminator="\n").writerows(cells)
                self.folder.create(config, rows, listed.getvalue())
        return step

    def _reopen(self, folder: RunFolder, step: int, force: bool) -> None:
        """Check the files of a run that continues, and drop the lines written after its checkpoint."""
        folder.check_logs(force)
        folder.keep_config()
        self.recorded = self.last_evaluation().get("step", 0)
        complaints = (read_jsonl(path).complaint(path) for path in (folder.metrics, folder.selections))
        self.state.warn(*filter(None, complaints))
        if self.resumed and step < self.state.task.steps:
            folder.reopen(self.config)
        folder.rewind(step if self.resumed else -1)

    def _check(self, folder: RunFolder, rows: Columns, force: bool) -> None:
        """Refuse to continue another run than the one in the checkpoint."""
        before = checkpoint.read_fingerprint(folder.checkpoints)
        if before is None or self.fingerprint is None:
            return  # nothing was trained yet
        if before.get("step") == before["total"]:  # a run that is complete may get more steps
            before["config"]["steps"] = self.fingerprint["config"]["steps"]
        differences = compare(before, self.fingerprint, (folder.rows(), rows))
        remark = refuse(differences, folder.path, force, "put it back as it was, start a new run, or add --force")
        if remark and self.state.main:
            print(remark, file=sys.stderr)

    def _restore(self, folder: RunFolder) -> int | None:
        """Continue at the newest checkpoint that is as it was written, if there is one; returns its step."""
        with reading(folder.checkpoints, "restore them from a copy, or start again with a new --out"):
            saved = checkpoint.load(folder.checkpoints, self.state.device)
            if saved is None:
                return None
            if type(saved["step"]) is not int or saved["step"] < 0:
                raise ValueError(f"its step is {saved['step']!r}")
            self.state.load_state_dict(saved)
            return int(saved["step"])

    def rewind(self) -> int:
        """Restore the last checkpoint and drop what was recorded after it; returns its step."""
        assert self.folder is not None
        step = self._restore(self.folder)
        if step is None:
            raise UserError(f"{self.folder.checkpoints} has no checkpoint to go back to; start again with a new --out")
        if self.writes:
            self.folder.rewind(step)
        wait_for_everyone(self.state.accelerator)
        return step

    def last_checkpoint(self) -> int | None:
        """The step of the last checkpoint, if there is one."""
        files = self.folder.checkpoints.glob("step-*.pt") if self.folder else ()
        return max((int(path.stem.rpartition("-")[2]) for path in files), default=None)

    def on_evaluation(self, trainer: Trainer, metrics: dict[str, Any]) -> None:
        """Record one evaluation, then save everything."""
        if self.folder and self.writes:
            append_jsonl(self.folder.metrics, metrics)
        self.checkpoint(metrics["step"])

    def last_evaluation(self) -> dict[str, Any]:
        """The evaluation recorded last."""
        lines = self.evaluations()
        return lines[-1] if lines else {}

    def evaluations(self) -> list[dict[str, Any]]:
        """All evaluations that can be read."""
        return read_jsonl(self.folder.metrics).values if self.folder else []

    def on_selection(self, trainer: Trainer, selection: Selection, metrics: dict[str, Any]) -> None:
        """Record a new core set: its metrics as a line, its ids and scores as a file."""
        if self.folder and self.writes:
            append_jsonl(self.folder.selections, metrics)
            save_npz(self.folder.path / "coresets" / f"step-{metrics['step']:09d}.npz", selection.columns())

    def checkpoint(self, step: int) -> None:
        """Save everything after `step` steps."""
        if self.folder and self.writes:
            self.folder.save_checkpoint(step, {**self.state.state_dict(), "step": step}, self.fingerprint)

    def on_finish(self, trainer: Trainer, summary: dict[str, Any]) -> None:
        """Save the model and its answers with the summary, whose presence marks a finished run."""
        if self.folder and self.writes:
            direction = influence_direction(self.state, self.batches)
            predictor = replace(self.state.predictor(), direction=direction, fingerprint=self.fingerprint)
            self.folder.finish(summary, predictor.files() | example_files(self.folder.path, self.state))
            if not self.report:
                return
            from ..report import write_report  # here, because its templates take a while to import

            try:
                write_report([self.folder.path], self.folder.path / "report.html")
            except Exception as fault:  # the run is finished and stored by now
                print(f"report not written: {fault}", file=sys.stderr)


def fingerprint(state: TrainState, options: dict[str, Any], rows: Columns) -> Fingerprint:
    """The fingerprint of this run; `options` are those of its config.yaml."""
    data = state.data
    bank = data.dataset.bank
    return {
        "config": options,
        "classes": list(data.dataset.classes),
        "data": content_digest(*rows.values()),
        "split": content_digest(data.split.labeled, data.split.pool, data.split.held_out),
        "network": bank.folder.parent.name if bank else None,
        "processes": state.world,
        "total": state.task.steps,
    }


def example_files(folder: Path, state: TrainState) -> dict[str, bytes]:
    """predictions.npz and gallery.npz: the final model's answers on the test set, and the images worth a look."""
    data = state.data
    pictures = data.dataset.images
    test = data.dataset.test
    files: dict[str, bytes] = {}
    images: Columns = {}
    if test is not None:
        predicted = state.row_predictor().predict(test.x)
        labels, _, confidence, calibrated = (column.numpy() for column in predicted[:4])
        answers: Columns = {"truth": np.asarray(test.y, np.int32), "predicted": labels.astype(np.int32)}
        answers |= {"confidence": confidence.astype(np.float32), "calibrated": calibrated.astype(np.float32)}
        files["predictions.npz"] = npz_bytes(answers)
        shown = (pictures.test or test).x
        images = mistakes(shown, test.names, answers) | cells(shown, test.names, answers)
    scored = last_scores(folder / "coresets")
    if scored:
        train = pictures.train
        images |= ranked(train.x, train.names, np.asarray(data.split.pool), np.asarray(data.pool_truth), scored)
    return files | ({"gallery.npz": npz_bytes(images)} if images else {})


def influence_direction(state: TrainState, batches: Batches) -> Tensor | None:
    """What the run's selector needs to rank further images (`vcc-infuse select`); None without such a selector."""
    if state.selector is None:
        return None
    model = state.handed_out.model if state.handed_out else state.ema.module
    pool = Pool(
        batches=batches,
        model=model,
        ema=model,
        algorithm=state.algorithm,
        calibrator=state.calibrator,
        task=state.task,
        number=state.task.steps,
    )
    with preserve_mode_and_rng(model, device=state.device):
        return state.selector.direction(pool)
