"""What a run measures: metrics at every evaluation, and the summary at its end; rates are fractions of 1."""

from __future__ import annotations

import sys
from typing import Any

import torch

from ..evaluation import evaluate
from ..runs.folder import versions
from .config import TrainConfig
from .state import TrainState


def collect_metrics(state: TrainState, done: int, config: TrainConfig) -> dict[str, Any]:
    """Training metrics since the last call and, on the first process, those of the test set, after `done` steps."""
    state.sync_stats()
    metrics = {"step": done, "seconds": state.train_seconds, **state.stats.read()}
    state.stats.reset()
    if state.main:
        metrics |= evaluate_test_set(state, config.bins) | class_thresholds(state)
    return metrics


def evaluate_test_set(state: TrainState, bins: int) -> dict[str, Any]:
    """Every metric of the test set, or of the labels kept for validation; empty without either."""
    test = state.data.dataset.test
    if test is None:
        return {}
    model, counts = state.classifier(), state.task.label_counts
    metrics: dict[str, Any] = evaluate(model, state.calibrator, test, state.views, state.device, bins, counts)
    metrics |= {"evaluated_on": state.data.dataset.evaluated_on, "evaluated_images": len(test)}
    state.best_error = min(state.best_error, metrics["error"])
    return metrics


def class_thresholds(state: TrainState) -> dict[str, list[float]]:
    """The threshold of each class, for methods that have thresholds."""
    found = state.algorithm.class_thresholds()
    return {} if found is None else {"threshold_per_class": torch.as_tensor(found).expand(state.task.classes).tolist()}


def summarize(state: TrainState, last: dict[str, Any], config: TrainConfig) -> dict[str, Any]:
    """The contents of summary.json; rates are fractions of 1."""
    task, dataset = state.task, state.data.dataset
    seen = task.steps * (task.batch_size + task.unlabeled_batch_size * bool(state.algorithm.views))
    metrics = {name: value for name, value in last.items() if name not in ("step", "seconds")}
    return {
        "evaluated_on": None,
        **metrics,
        **({} if dataset.test is None else {"error_best": state.best_error}),
        **({} if state.probe_error is None else {"error_probe": state.probe_error}),
        "steps": task.steps,
        "seconds_train": state.train_seconds,
        "seconds_embed": dataset.bank.seconds if dataset.bank else 0.0,
        "seconds_select": state.coreset_scheduler.seconds,
        "images_per_second": seen / max(state.train_seconds, 1e-9),
        "peak_rss_mb": peak_memory(),
        "coreset_size": state.coreset_scheduler.budget,
        "labels": task.labeled,
        "preset": config.preset,
        "seed": config.seed,
        "classes": list(dataset.classes),
        "skipped_images": len(dataset.skipped),
        "warnings": list(state.warnings),
        "bins": config.bins,
        "processes": state.world,
        "precision": state.accelerator.mixed_precision,
        "versions": versions(),
    }


def peak_memory() -> float | None:
    """The largest resident memory of this process so far, in megabytes; None where the system does not say."""
    try:
        import resource  # not on Windows
    except ImportError:
        return None
    unit = 1024**2 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
