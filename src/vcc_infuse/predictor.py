"""Predictor: a trained classifier as saved in a run folder, ready to label raw examples."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from .calibrators import Calibrator
from .data.augment.views import BankViews, ImageViews, VectorViews
from .data.dataset import Dataset, Examples
from .errors import UserError
from .evaluation import evaluate, infer
from .models import Classifier
from .models.weights import Preprocessing
from .types import Task
from .utils.io import write_atomic, write_json
from .utils.serialization import from_config, load_state, to_config

__all__ = ["Predictions", "Predictor"]


class Predictions(NamedTuple):
    """Class numbers, softmax probabilities, softmax confidence and calibrated confidence."""

    labels: Tensor
    probs: Tensor
    confidence: Tensor
    calibrated: Tensor


Views = ImageViews | VectorViews | BankViews


def make_views(dataset: Dataset, preprocessing: Preprocessing | None = None) -> Views:
    """The augmentation that fits a dataset; images are normalized as pretrained weights expect, if there are any."""
    if dataset.slots is not None:
        noise = dataset.bank.config.noise if dataset.bank else 0.0
        return BankViews(dataset.mean, dataset.std, dataset.slots, noise)
    if len(dataset.shape) == 1:
        return VectorViews(dataset.mean, dataset.std)
    mean, std = (preprocessing.mean, preprocessing.std) if preprocessing else (dataset.mean, dataset.std)
    return ImageViews(mean, std, flip=dataset.flip)


@dataclass
class Predictor:
    """Model, calibrator, preprocessing and class names.

    `direction` is the head's gradient (classes × (width + 1)) by which INFUSE ranks examples; None if the run had no
    selector that stores one.
    """

    model: Classifier
    calibrator: Calibrator
    views: Views
    classes: tuple[str, ...]
    shape: tuple[int, ...]
    task: Task
    device: torch.device
    direction: Tensor | None = None

    def predict(self, x: np.ndarray) -> Predictions:
        """Label raw rows (uint8 N,H,W,C images or float32 N,D features)."""
        if tuple(x.shape[2 if x.ndim == 3 else 1 :]) != self.shape:
            raise UserError(f"the model was trained on examples of shape {self.shape}, got {tuple(x.shape[1:])}")
        logits, calibrated = infer(self.model, self.calibrator, x, self.views, self.device)
        probs = logits.softmax(1)
        confidence, labels = probs.max(1)
        return Predictions(labels, probs, confidence, calibrated)

    def evaluate(self, examples: Examples, bins: int = 15) -> dict[str, Any]:
        """All test metrics on labeled examples."""
        counts = self.task.label_counts
        return evaluate(self.model, self.calibrator, examples, self.views, self.device, bins, counts)

    def save(self, folder: Path) -> None:
        """Write model.safetensors and model.json."""
        tensors = {f"model.{k}": v for k, v in self.model.state_dict().items()}
        tensors |= {f"calibrator.{k}": v for k, v in self.calibrator.state_dict().items()}
        tensors |= {} if self.direction is None else {"direction": self.direction}
        tensors = {k: v.detach().cpu().contiguous() for k, v in tensors.items()}
        write_atomic(folder / "model.safetensors", lambda temporary: temporary.write_bytes(save(tensors)))
        task = {k: v.tolist() if isinstance(v, Tensor) else v for k, v in vars(self.task).items()}
        write_json(
            folder / "model.json",
            {
                "backbone": to_config(self.model.backbone),
                "calibrator": to_config(self.calibrator),
                "classes": list(self.classes),
                "shape": list(self.shape),
                "mean": [float(v) for v in self.views.mean],
                "std": [float(v) for v in self.views.std],
                "flip": getattr(self.views, "flip", True),
                "slots": getattr(self.views, "slots", None),
                "task": task,
            },
        )

    @classmethod
    def load(cls, folder: str | Path, device: torch.device | str = "cpu") -> Predictor:
        """Load a run folder; nothing is unpickled."""
        folder = Path(folder)
        card = _read_card(folder)
        shape = tuple(card["shape"])
        backbone: nn.Module = from_config(card["backbone"], nn.Module)
        channels_first = (shape[2], shape[0], shape[1]) if len(shape) == 3 else shape
        model = Classifier.build(backbone, channels_first, len(card["classes"]))
        task = Task(**{**card["task"], "label_counts": torch.tensor(card["task"]["label_counts"])})
        calibrator: Calibrator = from_config(card["calibrator"], Calibrator)
        calibrator.setup(model, task)
        tensors = _load_tensors(folder / "model.safetensors", {"model": model, "calibrator": calibrator})
        model.to(device).eval()
        calibrator.to(device).eval()
        direction = tensors["direction"].to(device) if "direction" in tensors else None
        classes, device = tuple(card["classes"]), torch.device(device)
        return cls(model, calibrator, _read_views(card), classes, shape, task, device, direction)


def _read_card(folder: Path) -> dict[str, Any]:
    path = folder / "model.json"
    if not path.is_file():
        raise UserError(f"{folder} has no model.json; give the folder of a finished run (its option out)")
    try:
        card: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as fault:
        raise UserError(f"{path} is damaged ({fault}); train again or restore it from a copy") from fault
    return card


def _read_views(card: dict[str, Any]) -> Views:
    if card.get("slots"):
        return BankViews(card["mean"], card["std"], tuple(card["slots"]))
    if len(card["shape"]) == 1:
        return VectorViews(card["mean"], card["std"])
    return ImageViews(card["mean"], card["std"], flip=card.get("flip", True))


def _load_tensors(path: Path, modules: dict[str, nn.Module]) -> dict[str, Tensor]:
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as fault:
        raise UserError(f"{path} cannot be read ({fault}); train again or restore it from a copy") from fault
    for prefix, module in modules.items():
        part = {k.removeprefix(f"{prefix}."): v for k, v in tensors.items() if k.startswith(f"{prefix}.")}
        again = f"train again: vcc-infuse train --config {path.parent}/config.yaml --out NEW"
        load_state(module, part, f"{path} does not match this version's {type(module).__name__}; {again}")
    return tensors
