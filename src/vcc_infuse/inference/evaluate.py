"""Run a model over examples in eval mode and compute its test metrics."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from .. import metrics
from ..calibrators import Calibrator
from ..data.batches import Views
from ..data.dataset import Examples
from ..types import Outputs


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
) -> dict[str, object]:
    """Every test metric of an evaluation, as plain numbers, from logits (examples, classes) and confidence (examples,).

    If `label_counts`, the labels per class in training, are long-tailed, the errors of head, medium and tail classes
    are included.
    """
    probs = logits.double().softmax(1)
    confidence, predicted = probs.max(1)
    correct = predicted == y
    classes = logits.shape[1]
    errors = metrics.per_class_error(predicted, y, classes)
    return {
        "error": metrics.error(predicted, y),
        **({"error_top5": metrics.top_k_error(probs, y, 5)} if classes > 5 else {}),
        "error_balanced": metrics.balanced_error(predicted, y, classes),
        "error_per_class": [float(e) for e in errors],
        **({} if label_counts is None else metrics.group_errors(errors, label_counts)),
        "nll": metrics.nll(logits, y),
        "brier": metrics.brier(probs, y),
        **calibration_errors(confidence, correct, bins),
        **{f"{name}_calibrated": v for name, v in calibration_errors(calibrated, correct, bins).items()},
        "ace_classwise": metrics.ace_classwise(probs, y, bins),
        "ece_classwise": metrics.classwise_ece(probs, y, bins),
        "reliability": diagram(confidence, correct, bins),
        "reliability_calibrated": diagram(calibrated, correct, bins),
    }


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
) -> dict[str, object]:
    """The metrics of a model on labeled examples; see `measure`."""
    logits, confidence = infer(model, calibrator, test.x, views, device)
    return measure(logits, confidence, torch.from_numpy(np.asarray(test.y)), bins=bins, label_counts=label_counts)
