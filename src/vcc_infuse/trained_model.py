"""TrainedModel: what a run folder keeps of a classifier (model.safetensors and model.json), written and read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from .calibrators import Calibrator
from .data.augment.views import BankViews, ImageViews, VectorViews
from .data.dataset import Dataset
from .data.images.intensity import Ranges
from .errors import UserError
from .models import Classifier
from .models.weights import Preprocessing
from .types import Task
from .utils.io import json_bytes, read_json, reading
from .utils.manifest import check, publish, settle
from .utils.numerics import resolve_device
from .utils.serialization import Trust, from_config, load_state, to_config

Views = ImageViews | VectorViews | BankViews


def make_views(dataset: Dataset, preprocessing: Preprocessing | None = None) -> Views:
    """The augmentation that fits a dataset; images are normalized as pretrained weights expect, if there are any."""
    if dataset.slots is not None:
        noise = dataset.bank.config.noise if dataset.bank else 0.0
        return BankViews(dataset.mean, dataset.std, dataset.slots, noise)
    if len(dataset.shape) == 1:
        return VectorViews(dataset.mean, dataset.std)
    mean, std = (preprocessing.mean, preprocessing.std) if preprocessing else (dataset.mean, dataset.std)
    return ImageViews(mean, std, dataset.flip, dataset.augment)


@dataclass
class TrainedModel:
    """Model, calibrator, preprocessing and class names.

    `direction` is the head's gradient (classes × (width + 1)) by which INFUSE ranks examples; None if the run had no
    selector that stores one. `ranges` are the values of images with more than 8 bits that become 0 and 255.
    `summary` holds the figures of the run it was loaded from, `identity` what it was trained on.
    """

    model: Classifier
    calibrator: Calibrator
    views: Views
    classes: tuple[str, ...]
    shape: tuple[int, ...]
    task: Task
    device: torch.device
    direction: Tensor | None = None
    ranges: Ranges = ()
    summary: dict[str, Any] | None = None
    identity: dict[str, Any] | None = None

    def save(self, folder: Path) -> None:
        """Write model.safetensors and model.json, both at once."""
        publish(folder, self.files())

    def files(self) -> dict[str, bytes]:
        """The content of model.safetensors and model.json."""
        tensors = {f"model.{k}": v for k, v in self.model.state_dict().items()}
        tensors |= {f"calibrator.{k}": v for k, v in self.calibrator.state_dict().items()}
        tensors |= {} if self.direction is None else {"direction": self.direction}
        tensors = {k: v.detach().cpu().contiguous() for k, v in tensors.items()}
        task = {k: v.tolist() if isinstance(v, Tensor) else v for k, v in vars(self.task).items()}
        card = {
            "backbone": to_config(self.model.backbone),
            "calibrator": to_config(self.calibrator),
            "classes": list(self.classes),
            "shape": list(self.shape),
            "mean": [float(v) for v in self.views.mean],
            "std": [float(v) for v in self.views.std],
            "flip": getattr(self.views, "flip", True),
            "augment": getattr(self.views, "augment", "natural"),
            "slots": getattr(self.views, "slots", None),
            "ranges": [list(pair) for pair in self.ranges],
            "task": task,
            "identity": self.identity,
        }
        return {"model.safetensors": save(tensors), "model.json": json_bytes(card)}

    @classmethod
    def load(cls, folder: str | Path, device: torch.device | str = "auto", trust_code: Trust = False) -> Self:
        """Load a run folder; nothing is unpickled or downloaded.

        Args:
            folder: a finished run.
            device: "auto" (a GPU if there is one), "cpu", "cuda", "cuda:1" or "mps".
            trust_code: import classes that model.json names and that are not part of this package: True, or their
                import paths. Importing runs their code.
        """
        folder, device = Path(folder), device if isinstance(device, torch.device) else resolve_device(device)
        remedy = "restore it from a copy, or train again"
        with reading(folder / "model.json", remedy):
            return cls._from_card(_read_card(folder), folder, device, trust_code)

    @classmethod
    def _from_card(cls, card: dict[str, Any], folder: Path, device: torch.device, trust_code: Trust) -> Self:
        """The classifier that the card and the weights of a folder describe."""
        shape = _sizes(card["shape"])
        backbone: nn.Module = from_config(card["backbone"], nn.Module, trust_code)
        channels_first = (shape[2], shape[0], shape[1]) if len(shape) == 3 else shape
        model = Classifier.build(backbone, channels_first, len(card["classes"]))
        task = Task(**{**card["task"], "label_counts": torch.tensor(card["task"]["label_counts"])})
        calibrator: Calibrator = from_config(card["calibrator"], Calibrator, trust_code)
        calibrator.setup(model, task)
        tensors = _load_tensors(folder / "model.safetensors", {"model": model, "calibrator": calibrator})
        model.to(device).eval()
        calibrator.to(device).eval()
        direction = tensors["direction"].to(device) if "direction" in tensors else None
        ranges = tuple((low, high) for low, high in card.get("ranges", ()))
        summary, classes = read_json(folder / "summary.json"), tuple(map(str, card["classes"]))
        return cls(
            model, calibrator, _read_views(card), classes, shape, task, device, direction, ranges, summary,
            card.get("identity"),
        )  # fmt: skip


def _read_card(folder: Path) -> dict[str, Any]:
    path = folder / "model.json"
    settle(folder)
    if not path.is_file():
        raise UserError(f"{folder} has no model.json; give the folder of a finished run (its option out)")
    check(folder, ["model.json", "model.safetensors", "summary.json"])
    return read_json(path) or {}


def _sizes(values: Any) -> tuple[int, ...]:
    """The shape of an example: one size or three."""
    if not isinstance(values, list) or len(values) not in (1, 3) or any(type(v) is not int or v < 1 for v in values):
        raise ValueError(f"shape must be the length of a vector, or height, width and channels, got {values!r}")
    return tuple(values)


def _read_views(card: dict[str, Any]) -> Views:
    if card.get("slots"):
        return BankViews(card["mean"], card["std"], tuple(card["slots"]))
    if len(card["shape"]) == 1:
        return VectorViews(card["mean"], card["std"])
    return ImageViews(card["mean"], card["std"], card.get("flip", True), card.get("augment", "natural"))


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
