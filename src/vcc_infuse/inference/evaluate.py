"""Run a model over examples in eval mode and compute its test metrics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .. import metrics
from ..calibrators import Calibrator
from ..data.batches import Views
from ..data.dataset import Examples
from ..types import Outputs

COLUMNS = {
    "images_per_class": "test_images",
    "error_per_class": "error",
    "answers_per_class": "answers",
    "taken_for_per_class": "taken_for",
    "taken_for_images_per_class": "taken_for_images",
    "pseudo_label_share_per_class": "pseudo_label_share",
}
"""Lists of an evaluation, and their names in a row of `per_class`."""


def chunks(
    x: np.ndarray, views: Views, device: torch.device, size: int = 512, rows: np.ndarray | None = None
) -> Iterator[Tensor]:
    """Plain views of raw rows, all or the given ones, in batches of at most `size`."""
    for start in range(0, len(x) if rows is None else len(rows), size):
        part = x[start : start + size] if rows is None else x[rows[start : start + size]]
        raw = torch.from_numpy(np.array(part))  # copied, because mapped files are read-only
        yield views("plain", raw.to(device))


@torch.no_grad()
def infer(
    model: nn.Module, calibrator: Calibrator, x: np.ndarray, views: Views, device: torch.device, *, size: int = 512
) -> tuple[Tensor, Tensor]:
    """Logits (examples, classes) and calibrated confidence (examples,) in eval mode, on the CPU; modes are restored."""
    modes = {module: module.training for module in (model, calibrator)}
    for module in modes:
        module.eval()
    logits = []
    confidence = []
    for images in chunks(x, views, device, size):
        outputs: Outputs = model(images)
        logits.append(outputs.logits.float().cpu())
        confidence.append(calibrator.predict(outputs).cpu())
    for module, mode in modes.items():
        module.train(mode)
    return torch.cat(logits), torch.cat(confidence)


def measure(
    logits: Tensor, calibrated: Tensor, y: Tensor, *, bins: int = 15, label_counts: Tensor | None = None
) -> dict[str, Any]:
    """Every test metric of an evaluation, as plain numbers, from logits (examples, classes) and confidence (examples,).

    If `label_counts`, the labels per class in training, are long-tailed, the errors of head, medium and tail classes
    are included.
    """
    probs = logits.double().softmax(1)
    confidence, predicted = probs.max(1)
    correct = predicted == y
    classes = logits.shape[1]
    errors = metrics.per_class_error(predicted, y, classes)
    counts = metrics.confusion_counts(predicted, y, classes)
    wrong_label, wrong_images = metrics.taken_for(counts)
    return {
        "error": metrics.error(predicted, y),
        **({"error_top5": metrics.top_k_error(probs, y, 5)} if classes > 5 else {}),
        "error_balanced": metrics.balanced_error(predicted, y, classes),
        "error_per_class": [float(e) for e in errors],
        "images_per_class": counts.sum(1).tolist(),
        "answers_per_class": counts.sum(0).tolist(),
        "taken_for_per_class": wrong_label.tolist(),
        "taken_for_images_per_class": wrong_images.tolist(),
        **({} if label_counts is None else metrics.group_errors(errors, label_counts)),
        "nll": metrics.nll(logits, y),
        "brier": metrics.brier(probs, y),
        **calibration_errors(confidence, correct, bins),
        **{f"{name}_calibrated": v for name, v in calibration_errors(calibrated, correct, bins).items()},
        "ace_classwise": metrics.ace_classwise(probs, y, bins),
        "ece_classwise": metrics.classwise_ece(probs, y, bins),
        "abstain": metrics.abstain_table(calibrated, correct),
        "reliability": diagram(confidence, correct, bins),
        "reliability_calibrated": diagram(calibrated, correct, bins),
    }


def name_classes(figures: dict[str, Any], classes: Sequence[str], label_counts: Sequence[int]) -> dict[str, Any]:
    """The figures of `measure` and of training with one table, `per_class`, in place of nameless lists.

    Args:
        figures: what was measured; without a test set only what training knows.
        classes: the names of the classes.
        label_counts: the labels of each class in training.
    """
    columns = {name: figures[key] for key, name in COLUMNS.items() if key in figures}
    table = []
    for i, (name, labels) in enumerate(zip(classes, label_counts, strict=True)):
        row = {"class": name, "labels": int(labels), **{key: column[i] for key, column in columns.items()}}
        row |= {key: None for key, value in row.items() if value != value}  # NaN: the class has no test image
        if "taken_for" in row:
            row["taken_for"] = classes[row["taken_for"]] if row["taken_for"] >= 0 else None
        table.append(row)
    return {**{key: value for key, value in figures.items() if key not in COLUMNS}, "per_class": table}


def calibration_errors(confidence: Tensor, correct: Tensor, bins: int) -> dict[str, float]:
    """ECE, MCE, ACE and the unweighted average error of one confidence."""
    functions = (metrics.ece, metrics.mce, metrics.ace, metrics.average_ce)
    return {function.__name__: function(confidence, correct, bins) for function in functions}


def diagram(confidence: Tensor, correct: Tensor, bins: int) -> dict[str, list[float | None]]:
    """A reliability diagram as lists; empty bins have accuracy and confidence None."""
    table = metrics.reliability(confidence, correct, bins)
    columns = {"accuracy": table.accuracy.tolist(), "confidence": table.confidence.tolist()}
    values = {name: [v if v == v else None for v in column] for name, column in columns.items()}
    return {"count": [int(n) for n in table.count], **values}


def evaluate(
    model: nn.Module,
    calibrator: Calibrator,
    test: Examples,
    views: Views,
    device: torch.device,
    bins: int = 15,
    label_counts: Tensor | None = None,
) -> dict[str, Any]:
    """The metrics of a model on labeled examples; see `measure`."""
    logits, confidence = infer(model, calibrator, test.x, views, device)
    return measure(logits, confidence, torch.from_numpy(np.asarray(test.y)), bins=bins, label_counts=label_counts)
