"""Predictor: a trained classifier that labels images or feature vectors, kept as model.safetensors and model.json."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from ..augment.views import BankViews, ImageViews, VectorViews
from ..bank.onnx_engine import ENGINES, Engine, choose_engine
from ..calibrators import Calibrator
from ..data.dataset import Dataset, Examples
from ..data.images.high_bit_depth import Ranges
from ..data.images.store import Limits
from ..errors import UserError, check_choice, check_integer, check_range
from ..models import Classifier
from ..models.pretrained import Preprocessing
from ..pool_audit import KnownRows
from ..runs.fingerprint import Fingerprint
from ..types import Task
from ..utils.device import resolve_device
from ..utils.io import json_bytes, read_json, reading
from ..utils.manifest import check, publish, settle
from ..utils.serialization import Trust, from_config, load_state, to_config
from .evaluate import evaluate, infer, name_classes
from .inputs import Inputs, Row, read_rows
from .known import check_unknown, embed_images, judge, known_tensors, read_known, seen_features

__all__ = ["Prediction", "Predictions", "Predictor"]

Views = ImageViews | VectorViews | BankViews


def make_views(dataset: Dataset, preprocessing: Preprocessing | None = None) -> Views:
    """The augmentation that fits a dataset; images are normalized as pretrained weights expect, if there are any."""
    if dataset.slots is not None:
        noise = dataset.bank.config.noise if dataset.bank else 0.0
        return BankViews(dataset.mean, dataset.std, dataset.slots, noise)
    if len(dataset.shape) == 1:
        return VectorViews(dataset.mean, dataset.std)
    normalization = preprocessing or dataset
    return ImageViews(normalization.mean, normalization.std, dataset.flip, dataset.augment)


class Predictions(NamedTuple):
    """The answers for a batch of examples.

    Attributes:
        labels: class numbers, of shape (examples,).
        probs: softmax probabilities, of shape (examples, classes).
        confidence: softmax confidence, of shape (examples,).
        calibrated: calibrated confidence, of shape (examples,).
        unknown: distance to the nearest labeled images, of shape (examples,): 0 is a copy, √2 is unrelated. NaN if the
            model was not trained on a bank.
        unknown_p: how often an image of a known class is at least that far, of shape (examples,).
    """

    labels: Tensor
    probs: Tensor
    confidence: Tensor
    calibrated: Tensor
    unknown: Tensor
    unknown_p: Tensor


class Prediction(NamedTuple):
    """One image of a stream.

    Attributes:
        name: the file, or the number of the image.
        label: the answer; None if the calibrated confidence or `unknown_p` is too low, or if there is an `error`.
        best_label: the most likely class, answered or not; None only if there is an `error`.
        confidence: softmax confidence.
        calibrated: calibrated confidence.
        probs: softmax probabilities, one per class.
        unknown: distance to the nearest labeled images; NaN if the model was not trained on a bank.
        unknown_p: how often an image of a known class is at least that far.
        error: why the image cannot be read.
    """

    name: str
    label: str | None
    best_label: str | None = None
    confidence: float = math.nan
    calibrated: float = math.nan
    probs: tuple[float, ...] = ()
    unknown: float = math.nan
    unknown_p: float = math.nan
    error: str = ""


@dataclass
class Predictor:
    """A trained classifier with its calibrator, its preprocessing and its class names.

    Args:
        model: the network, in eval mode.
        calibrator: turns its outputs into calibrated confidence.
        views: normalizes raw examples.
        classes: the names of the classes.
        shape: the shape of a training example: (height, width, channels), or (length,) of a feature vector.
        task: what the run was set up for.
        device: where the model is.
        direction: the head's gradient, of shape (classes, width + 1), by which INFUSE ranks examples; None if the run
            had no selector that stores one.
        known: features of the labeled images, by which unknown images are told; None if the run was not on a bank.
        ranges: the values that become 0 and 255 in images with more than 8 bits per channel.
        summary: the metrics of the run it was loaded from.
        fingerprint: which run it was trained in.
        engine: what computes timm networks on CPUs: "torch", "onnx" (ONNX Runtime), or "auto" for the latter if the
            network is in the cache already.

    >>> predictor = Predictor.load("runs/x")  # doctest: +SKIP
    >>> answers = predictor.predict("photos/")  # doctest: +SKIP
    >>> [predictor.classes[label] for label in answers.labels]  # doctest: +SKIP
    """

    model: Classifier
    calibrator: Calibrator
    views: Views
    classes: tuple[str, ...]
    shape: tuple[int, ...]
    task: Task
    device: torch.device
    direction: Tensor | None = None
    known: KnownRows | None = None
    ranges: Ranges = ()
    summary: dict[str, Any] | None = None
    fingerprint: Fingerprint | None = None
    engine: Engine = "auto"

    @classmethod
    def load(
        cls,
        folder: str | Path,
        device: torch.device | str = "auto",
        trust_code: Trust = False,
        *,
        engine: Engine = "auto",
    ) -> Self:
        """Load a run folder; nothing is unpickled or downloaded.

        Args:
            folder: a finished run.
            device: "auto" (a GPU if there is one), "cpu", "cuda", "cuda:1" or "mps".
            trust_code: import classes that model.json names and that are not part of this package: True, or their
                import paths. Importing runs their code.
            engine: see the class.
        """
        folder = Path(folder)
        check_choice("engine", engine, ENGINES)
        device = device if isinstance(device, torch.device) else resolve_device(device)
        with reading(folder / "model.json", "restore it from a copy, or train again"):
            settle(folder)
            if not (folder / "model.json").is_file():
                raise UserError(f"{folder} has no model.json; give the folder of a finished run (its option out)")
            check(folder, ["model.json", "model.safetensors", "summary.json"])
            predictor = cls._from_card(read_json(folder / "model.json") or {}, folder, device, trust_code)
        predictor.engine = engine
        return predictor

    @classmethod
    def _from_card(cls, card: dict[str, Any], folder: Path, device: torch.device, trust_code: Trust) -> Self:
        sizes = card["shape"]
        if not isinstance(sizes, list) or len(sizes) not in (1, 3) or any(type(v) is not int or v < 1 for v in sizes):
            raise ValueError(f"shape must be the length of a vector, or height, width and channels, got {sizes!r}")
        shape = tuple(sizes)
        backbone: nn.Module = from_config(card["backbone"], nn.Module, trust_code)
        channels_first = (shape[2], shape[0], shape[1]) if len(shape) == 3 else shape
        model = Classifier.build(backbone, channels_first, len(card["classes"]))
        task = Task(**{**card["task"], "label_counts": torch.tensor(card["task"]["label_counts"])})
        calibrator: Calibrator = from_config(card["calibrator"], Calibrator, trust_code)
        calibrator.setup(model, task)
        tensors = _load_tensors(folder / "model.safetensors", {"model": model, "calibrator": calibrator})
        return cls(
            model=model.to(device).eval(),
            calibrator=calibrator.to(device).eval(),
            views=_views_of_card(card),
            classes=tuple(map(str, card["classes"])),
            shape=shape,
            task=task,
            device=device,
            direction=tensors["direction"].to(device) if "direction" in tensors else None,
            known=read_known(model, tensors) if card.get("known") else None,
            ranges=tuple((low, high) for low, high in card.get("ranges", ())),
            summary=read_json(folder / "summary.json"),
            fingerprint=card.get("fingerprint"),
        )

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path,
        device: torch.device | str = "auto",
        revision: str | None = None,
        trust_code: Trust = False,
    ) -> Self:
        """Load a folder, or the repository `name` (USER/NAME) of the hub at a `revision`; see `load`."""
        from .hub import download  # here, as below, because the client of the hub takes a while to import

        return cls.load(name if Path(name).is_dir() else download(str(name), revision), device, trust_code)

    def files(self) -> dict[str, bytes]:
        """The content of model.safetensors and model.json."""
        tensors = {f"model.{k}": v for k, v in self.model.state_dict().items()}
        tensors |= {f"calibrator.{k}": v for k, v in self.calibrator.state_dict().items()}
        tensors |= {} if self.direction is None else {"direction": self.direction}
        tensors |= {} if self.known is None else known_tensors(self.known)
        tensors = {k: v.detach().cpu().contiguous() for k, v in tensors.items()}
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
            "task": {
                name: value.tolist() if isinstance(value, Tensor) else value
                for name, value in vars(self.task).items()
                if name not in ("label_groups", "pool_shares")  # which only training needs
            },
            "known": self.known is not None,
            "fingerprint": self.fingerprint,
        }
        return {"model.safetensors": save(tensors), "model.json": json_bytes(card)}

    def save(self, folder: Path) -> None:
        """Write model.safetensors and model.json, both at once."""
        publish(folder, self.files())

    def save_pretrained(self, folder: str | Path, name: str | None = None) -> Path:
        """Write the model with a model card (README.md), as for the Hugging Face Hub; `name` is the card's title."""
        from .hub import model_card

        folder = Path(folder)
        if folder.is_file():
            raise UserError(f"{folder} is a file; give a folder")
        folder.mkdir(parents=True, exist_ok=True)
        files = self.files() | ({} if self.summary is None else {"summary.json": json_bytes(self.summary)})
        card = model_card(name or folder.name, json.loads(files["model.json"]), self.summary)
        publish(folder, {**files, "README.md": card.encode()})
        return folder

    def push_to_hub(self, name: str, *, private: bool = False, message: str = "Upload model") -> str:
        """Upload the model and its card to the repository `name` (USER/NAME) of the hub; returns its address."""
        from .hub import upload

        with tempfile.TemporaryDirectory() as folder:
            return upload(self.save_pretrained(folder, name), name, private, message)

    def predict(self, images: Inputs, batch_size: int = 512) -> Predictions:
        """Label everything in `images` at once.

        Args:
            images: the path of an image, folder or zip; a PIL image; an array or tensor of one or more images of any
                size, integers 0…255 or floats 0…1; or a list of these. A model of feature vectors takes rows of shape
                (examples, length).
            batch_size: images per forward; fewer need less memory.

        An image that cannot be read is an error; `stream` skips it and continues. A missing path is an error in both.
        """
        size = check_integer("batch_size", batch_size)
        if len(self.shape) == 1:
            return self._label(self._vectors(images), size)
        if (
            isinstance(images, np.ndarray)
            and images.dtype == np.uint8
            and images.shape[1:] == self.shape
            and len(images)
        ):
            return self._label(images, size)  # as it is: it may be a mapped file larger than memory
        parts = []
        for batch in _batches(read_rows(images, self.shape, self.ranges), size):
            for row in batch:
                if row.x is None:
                    remedy = "remove it, or use stream, which skips it"
                    raise UserError(f"{row.name} cannot be read: {row.error}; {remedy}")
            parts.append(self._label(np.stack([row.x for row in batch if row.x is not None]), size))
        if not parts:
            raise UserError("there are no images to predict; give at least one")
        return Predictions(*map(torch.cat, zip(*parts, strict=True)))

    def stream(
        self,
        images: Inputs,
        batch_size: int = 64,
        abstain: float = 0.0,
        limits: Limits | None = None,
        *,
        unknown: float = 0.0,
    ) -> Iterator[Prediction]:
        """Label images one after another; memory does not grow with their number.

        Args:
            images: as in `predict`; an iterable is read as it is needed, `batch_size` images ahead.
            batch_size: images per forward.
            abstain: an image with a lower calibrated confidence gets no `label`, only a `best_label`. The run suggests
                cuts: `predictor.summary["abstain"]`.
            limits: the largest files and images that are read.
            unknown: an image whose `unknown_p` is at most this gets no `label`, only a `best_label`: it seems to be of
                no class. 0.05 also leaves out up to one in twenty images of the known classes.

        Returns:
            One `Prediction` per image, in order; it has an `error` if the image cannot be read.
        """
        size = check_integer("batch_size", batch_size)
        least = check_range("abstain", abstain, 0, 1)
        check_unknown(unknown, self.known)
        if len(self.shape) == 1:
            raise UserError("stream takes images, and this model was trained on feature vectors; use predict")
        return self._stream(read_rows(images, self.shape, self.ranges, limits), size, least, unknown)

    def _stream(self, rows: Iterator[Row], size: int, least: float, foreign: float) -> Iterator[Prediction]:
        for batch in _batches(rows, size):
            pixels = [row.x for row in batch if row.x is not None]
            columns = (column.tolist() for column in self._label(np.stack(pixels), size)) if pixels else [[]] * 6
            answers = zip(*columns, strict=True)
            for row in batch:
                if row.x is None:
                    yield Prediction(row.name, None, error=row.error)
                else:
                    label, probs, confidence, calibrated, unknown, p = next(answers)
                    best = self.classes[label]
                    answer = best if calibrated >= least and not p <= foreign else None  # p may be NaN
                    yield Prediction(row.name, answer, best, confidence, calibrated, tuple(probs), unknown, p)

    def evaluate(self, examples: Examples, bins: int = 15) -> dict[str, Any]:
        """All test metrics on labeled examples: see `inference.evaluate.measure`, and `per_class` of `name_classes`."""
        counts = self.task.label_counts
        figures = evaluate(self._fast_model, self.calibrator, examples, self.views, self.device, bins, counts)
        return name_classes(figures, self.classes, counts.tolist())

    @cached_property
    def _fast_model(self) -> nn.Module:
        """The network that answers: in ONNX Runtime, or as it is."""
        return choose_engine(self.model, self.engine, device=self.device) or self.model

    def _label(self, x: np.ndarray, size: int) -> Predictions:
        with seen_features(self._fast_model, self.known) as batches:
            logits, calibrated = infer(self._fast_model, self.calibrator, x, self.views, self.device, size=size)
        probs = logits.softmax(1)
        confidence, labels = probs.max(1)
        return Predictions(labels, probs, confidence, calibrated, *judge(self.known, batches, len(x)))

    def embed(self, x: np.ndarray, *, progress: bool = False) -> np.ndarray:
        """Features of uint8 images by the frozen network, (images, width), of unit length, as the head sees them."""
        if x.shape[1:] != self.shape:
            raise UserError(f"images must have the shape of the model's, {self.shape}, got {x.shape[1:]}; resize them")
        return embed_images(self._fast_model, x, self.views, self.device, progress=progress)

    def _vectors(self, rows: Any) -> np.ndarray:
        """Vectors (examples, length), or the views of a bank (examples, views, length)."""
        x = rows.detach().cpu().numpy() if isinstance(rows, Tensor) else np.asarray(rows)
        x = x[None] if x.shape == self.shape else x
        if x.dtype.kind not in "iuf" or not x.ndim > 1 or tuple(x.shape[2 if x.ndim == 3 else 1 :]) != self.shape:
            got = f"{x.dtype} of shape {tuple(x.shape)}"
            raise UserError(f"the model was trained on feature vectors of length {self.shape[0]}, got {got}")
        if not len(x):
            raise UserError("there are no rows to predict; give at least one")
        return x if x.dtype == np.float16 else x.astype(np.float32, copy=False)


def _views_of_card(card: dict[str, Any]) -> Views:
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


def _batches(rows: Iterator[Row], size: int) -> Iterator[list[Row]]:
    return iter(lambda: list(islice(rows, size)), [])
