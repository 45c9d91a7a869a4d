"""What a run measures: figures at every evaluation, and the summary at its end; rates are fractions of 1."""

from __future__ import annotations

import math
import resource
import sys
from typing import Any

import torch

from .errors import UserError
from .evaluation import evaluate
from .parts import Parts
from .run_folder import versions


def take_figures(parts: Parts, done: int, epoch: int, bins: int, lr: float) -> dict[str, Any]:
    """Training figures since the last time and, on the first process, those of the test set, after `done` steps."""
    parts.agree()
    figures = {"step": done, "epoch": done / epoch, "seconds": parts.seconds, **parts.tally.read()}
    check_loss(figures, lr)
    parts.tally.reset()
    if parts.main:
        figures |= on_test_set(parts, bins) | threshold_figures(parts)
    return figures


def check_loss(figures: dict[str, Any], lr: float) -> None:
    """A run whose loss is no number has nothing more to learn."""
    loss = sum(value for name, value in figures.items() if name.startswith("loss_"))
    if not math.isfinite(loss):
        remedy = f"lower --lr {lr} or use --precision fp32"
        raise UserError(f"the loss became {loss} before step {figures['step']}; {remedy}")


def on_test_set(parts: Parts, bins: int) -> dict[str, Any]:
    """Every figure of the test set; none without one."""
    test = parts.data.dataset.test
    if test is None:
        return {}
    model, counts = parts.classifier(), parts.task.label_counts
    figures: dict[str, Any] = evaluate(model, parts.calibrator, test, parts.views, parts.device, bins, counts)
    parts.best = min(parts.best, figures["error"])
    return figures


def threshold_figures(parts: Parts) -> dict[str, list[float]]:
    """The threshold of each class, where the method has any."""
    found = parts.algorithm.class_thresholds()
    return {} if found is None else {"threshold_per_class": torch.as_tensor(found).expand(parts.task.classes).tolist()}


def summarise(parts: Parts, last: dict[str, Any], seed: int, bins: int) -> dict[str, Any]:
    """The figures of summary.json; rates are fractions of 1."""
    task, dataset = parts.task, parts.data.dataset
    seen = task.steps * (task.batch + task.unlabelled_batch * bool(parts.algorithm.views))
    unknown = {"pseudo_label_coverage": None, "pseudo_label_precision": None}
    figures = {name: value for name, value in last.items() if name not in ("step", "epoch", "seconds")}
    return {
        **unknown,
        **figures,
        **({} if dataset.test is None else {"error_best": parts.best}),
        "steps": task.steps,
        "seconds_train": parts.seconds,
        "seconds_select": parts.refresher.seconds,
        "images_per_second": seen / max(parts.seconds, 1e-9),
        "peak_rss_mb": peak_memory(),
        "coreset_size": parts.refresher.budget,
        "labels": task.labelled,
        "seed": seed,
        "classes": list(dataset.classes),
        "skipped_images": len(dataset.skipped),
        "bins": bins,
        "processes": parts.world,
        "precision": parts.accelerator.mixed_precision,
        "versions": versions(),
    }


def peak_memory() -> float:
    """The largest resident memory of this process so far, in megabytes."""
    unit = 1024**2 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
