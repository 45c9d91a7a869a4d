"""Journal: what a run writes, while it goes and when it ends; silent without a folder and on other processes."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from torch import Tensor

from .data.batches import Batches
from .data.dataset import Examples
from .describe import describe
from .errors import UserError
from .files import read_lines
from .parts import Parts
from .predictor import Predictor
from .report import write_report
from .report.columns import Columns, save_columns
from .report.examples import last_scores, mistakes, ranked
from .run_folder import RunFolder
from .selectors import INFUSE, Pool, Selection, save_selection
from .selectors.rest import at_rest
from .track import Tracker


class Journal:
    """The run folder of one run, seen from the training loop."""

    def __init__(self, out: str | None, parts: Parts, report: bool = True) -> None:
        self.folder = RunFolder(out) if out else None
        self.parts, self.report = parts, report
        self.tracker = Tracker(parts.accelerator)

    @property
    def writes(self) -> bool:
        """Whether this process writes files."""
        return self.folder is not None and self.parts.main

    def open(self, config: str, resume: bool) -> int:
        """Make the folder, or reopen it and restore the parts; returns the step to start from."""
        if self.folder is None:
            if resume:
                raise UserError("resume=True needs the folder of the run: Trainer(out=…)")
            return 0
        state = self.folder.load_checkpoint(self.parts.device) if resume else None
        step = state["step"] if state else 0
        self.parts.accelerator.wait_for_everyone()
        if self.writes:
            noted = self.last_evaluation().get("step", 0)
            if resume:
                self.folder.rewind(step)
            else:
                self._create(self.folder, config)
            self.tracker.start(self.folder.path, config, step if resume else None, noted)
        if state:
            self.parts.load_state_dict(state)
        return step

    def _create(self, folder: RunFolder, config: str) -> None:
        folder.check_free()
        folder.create(config)
        skipped = self.parts.data.dataset.skipped
        if skipped:
            folder.write_text("skipped.tsv", "".join(f"{path}\t{reason}\n" for path, reason in skipped))

    def evaluation(self, figures: dict[str, Any]) -> None:
        """Note one evaluation."""
        if self.folder and self.writes:
            self.folder.append(figures)
            self.tracker.write(figures["step"], figures)

    def last_evaluation(self) -> dict[str, Any]:
        """The evaluation noted last."""
        lines = read_lines(self.folder.metrics) if self.folder else []
        return lines[-1] if lines else {}

    def selection(self, selection: Selection, figures: dict[str, Any]) -> None:
        """Note a new core set: its figures as a line, its ids and scores as a file."""
        if self.folder and self.writes:
            self.folder.append_selection(figures)
            save_selection(self.folder.path / "coresets" / f"step-{figures['step']:09d}.npz", selection)

    def checkpoint(self, step: int) -> None:
        """Save everything after `step` steps."""
        if self.folder and self.writes:
            self.folder.save_checkpoint(step, {**self.parts.state_dict(), "step": step})

    def finish(self, summary: dict[str, Any]) -> None:
        """Save the model, then the summary, whose presence marks a finished run."""
        if self.folder and self.writes:
            direction = infuse_direction(self.parts, summary["seed"])
            replace(self.parts.predictor(), direction=direction).save(self.folder.path)
            save_examples(self.folder.path, self.parts)
            self.folder.write_summary(summary)
            if self.report:
                draw(self.folder.path)

    def close(self) -> None:
        """End the live view, however the run ended."""
        self.tracker.close()


def draw(folder: Path) -> None:
    """Write report.html. The run is finished and stored by now: a fault in the drawing is told, and costs nothing."""
    try:
        write_report([folder], folder / "report.html")
    except Exception as fault:
        print(f"report not written: {fault}", file=sys.stderr)


def save_examples(folder: Path, parts: Parts) -> None:
    """predictions.npz and gallery.npz: what the final model says of the test set, and the images worth a look."""
    data = parts.data
    images = {} if data.dataset.test is None else save_predictions(folder, parts.predictor(), data.dataset.test)
    scored = last_scores(folder / "coresets")
    if scored:
        train = data.dataset.train
        images |= ranked(train.x, train.names, np.asarray(data.split.pool), np.asarray(data.pool_truth), scored)
    if images:
        save_columns(folder / "gallery.npz", images)


def save_predictions(folder: Path, predictor: Predictor, test: Examples) -> Columns:
    """Write predictions.npz; returns the images that were mistaken."""
    labels, _, confidence, calibrated = (column.cpu().numpy() for column in predictor.predict(test.x))
    answers = {"truth": np.asarray(test.y, np.int32), "predicted": labels.astype(np.int32)}
    answers |= {"confidence": confidence.astype(np.float32), "calibrated": calibrated.astype(np.float32)}
    save_columns(folder / "predictions.npz", answers)
    return mistakes(test.x, test.names, answers)


def infuse_direction(parts: Parts, seed: int) -> Tensor:
    """INFUSE's direction of the averaged head, which is all that ranking other images needs of the labelled set."""
    task, model = parts.task, parts.ema.module
    batches = Batches(
        parts.data, parts.views, (), batch=task.batch, unlabelled=task.unlabelled_batch, seed=seed, device=parts.device
    )
    pool = Pool.of(batches, model, model, parts.algorithm, parts.calibrator, task, task.steps)
    with at_rest(model, device=parts.device):
        return INFUSE().direction(pool)


def config_text(name: str, settings: dict[str, Any], **objects: object) -> str:
    """The configuration of a run started from Python, in the form the command line writes."""
    described = {key: describe(thing) if thing else None for key, thing in objects.items()}
    return yaml.safe_dump({"data": name, **described, **settings}, sort_keys=False)
