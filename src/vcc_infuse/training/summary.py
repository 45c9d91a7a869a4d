"""What a run measures: running sums between two evaluations, the metrics of each, and the summary at the end.

Rates are fractions of 1.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..inference.evaluate import evaluate
from ..runs.folder import versions
from ..types import Losses, PseudoLabels
from .config import TrainConfig

if TYPE_CHECKING:
    from .state import TrainState


class TrainingStats:
    """Sums since the last `reset`; only reading them synchronizes with the device.

    Rows of `pseudo`, one column per pseudo class: seen, selected weight, selected weight with known truth, and with a
    right label. Without `checked`, because no label of the pool is both known and hidden, there is no precision.
    """

    def __init__(self, classes: int, device: torch.device | str = "cpu", checked: bool = True) -> None:
        self.classes, self.device, self.checked = classes, device, checked
        self.reset()

    def reset(self) -> None:
        """Start over."""
        self.steps = 0
        self.losses: dict[str, Tensor] = {}
        self.pseudo = torch.zeros(4, self.classes, device=self.device, dtype=torch.float64)

    @torch.no_grad()
    def add(self, losses: Losses, truth: Tensor) -> None:
        """Add one optimizer step's terms and pseudo labels."""
        for name, term in losses.items():
            self.losses[name] = self.losses.get(name, torch.zeros((), device=self.device)) + term.detach().float()
        if losses.pseudo is not None:
            self.add_pseudo(losses.pseudo, truth)

    @torch.no_grad()
    def add_pseudo(self, pseudo: PseudoLabels, truth: Tensor) -> None:
        """Add the pseudo labels of one step; truth is −1 where unknown."""
        labels, weights = pseudo.labels, pseudo.weights.double()
        known = weights * (truth >= 0)
        right = known * (labels == truth)
        rows = torch.stack([torch.ones_like(weights), weights, known, right])
        self.pseudo.index_add_(1, labels, rows.to(self.pseudo.device))

    def read(self) -> dict[str, Any]:
        """Mean losses, and coverage and precision of the pseudo labels, overall and per pseudo class."""
        count = max(self.steps, 1)
        figures: dict[str, Any] = {f"loss_{name}": float(total) / count for name, total in self.losses.items()}
        seen, selected, known, right = self.pseudo.cpu()
        if seen.sum() > 0:
            figures["pseudo_label_coverage"] = float(selected.sum() / seen.sum())
            figures["pseudo_label_share_per_class"] = (seen / seen.sum()).tolist()
            figures["pseudo_label_coverage_per_class"] = (selected / seen).tolist()
        if seen.sum() > 0 and self.checked:
            figures["pseudo_label_precision"] = float(right.sum() / known.sum())
            figures["pseudo_label_precision_per_class"] = (right / known).tolist()
        return figures

    def state_dict(self) -> dict[str, Any]:
        """Everything, for a checkpoint."""
        return {"steps": self.steps, "losses": dict(self.losses), "pseudo": self.pseudo.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where the checkpoint was."""
        self.steps, self.losses, self.pseudo = state["steps"], dict(state["losses"]), state["pseudo"]


def collect_metrics(state: TrainState, done: int, config: TrainConfig) -> dict[str, Any]:
    """Training metrics since the last call and, on the first process, those of the test set, after `done` steps."""
    state.sync_stats()
    metrics = {"step": done, "seconds": state.counters.train_seconds, **state.stats.read()}
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
    state.counters.best_error = min(state.counters.best_error, metrics["error"])
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
        **({} if dataset.test is None else {"error_best": state.counters.best_error}),
        **({} if state.probe_error is None else {"error_probe": state.probe_error}),
        "steps": task.steps,
        "seconds_train": state.counters.train_seconds,
        "seconds_embed": dataset.bank.seconds if dataset.bank else 0.0,
        "seconds_select": state.coreset_scheduler.seconds,
        "images_per_second": seen / max(state.counters.train_seconds, 1e-9),
        "peak_rss_mb": peak_memory(),
        "coreset_size": state.coreset_scheduler.budget,
        "labels": task.labeled,
        "preset": config.preset,
        **network(state),
        "seed": config.seed,
        "classes": list(dataset.classes),
        "skipped_images": len(dataset.skipped),
        "warnings": list(state.counters.warnings),
        "bins": config.bins,
        "processes": state.world,
        "precision": state.accelerator.mixed_precision,
        "versions": versions(),
    }


def network(state: TrainState) -> dict[str, Any]:
    """What sees the images: the frozen network or the backbone, and the side to which it resizes them, if it does."""
    bank = state.data.dataset.bank
    encoder = bank.encoder if bank else state.model.backbone
    name = getattr(encoder, "name", None) or type(encoder).__name__
    side = getattr(encoder, "input_size", None)
    shape = state.data.dataset.images.shape
    return {"encoder": name, "input_size": side or (shape[0] if len(shape) == 3 else None)}


def peak_memory() -> float | None:
    """The largest resident memory of this process so far, in megabytes; None where the system does not say."""
    try:
        import resource  # not on Windows
    except ImportError:
        return None
    unit = 1024**2 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
