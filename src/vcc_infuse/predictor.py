"""Predictor: a trained classifier as saved in a run folder, ready to label raw examples."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from .data.dataset import Examples
from .data.images.limits import Limits
from .data.inputs import Inputs, Row, read_rows
from .errors import UserError
from .evaluation import evaluate, infer
from .trained_model import TrainedModel
from .utils.hub import download, model_card, upload
from .utils.io import json_bytes
from .utils.manifest import publish
from .utils.serialization import Trust
from .validation import check_integer, check_range

__all__ = ["Prediction", "Predictions", "Predictor"]
T = TypeVar("T")


class Predictions(NamedTuple):
    """Class numbers, softmax probabilities, softmax confidence and calibrated confidence."""

    labels: Tensor
    probs: Tensor
    confidence: Tensor
    calibrated: Tensor


class Prediction(NamedTuple):
    """One image of a stream: its label is None if its calibrated confidence is too low, or if there is an `error`."""

    name: str
    label: str | None
    confidence: float = math.nan
    calibrated: float = math.nan
    probs: tuple[float, ...] = ()
    error: str = ""


@dataclass
class Predictor(TrainedModel):
    """A `TrainedModel` that labels examples."""

    def predict(self, images: Inputs, batch_size: int = 512) -> Predictions:
        """Label everything in `images` at once.

        Args:
            images: the path of an image, folder or zip; a PIL image; an array or tensor of one or more images of any
                size, integers 0…255 or floats 0…1; or a list of these. A model of feature vectors takes rows N×D.
            batch_size: images per forward; fewer need less memory.

        An image that cannot be read is an error; `stream` goes on. A path that is missing is one in both.
        """
        size = check_integer("batch_size", batch_size)
        if len(self.shape) == 1:
            return self._label(self._vectors(images), size)
        fitting = isinstance(images, np.ndarray) and images.dtype == np.uint8 and images.shape[1:] == self.shape
        if isinstance(images, np.ndarray) and fitting and len(images):  # perhaps a file larger than memory
            return self._label(images, size)
        batches = batched(map(_pixels, read_rows(images, self.shape, self.ranges)), size)
        found = [self._label(np.stack(batch), size) for batch in batches]
        if not found:
            raise UserError("there are no images to predict; give at least one")
        return Predictions(*map(torch.cat, zip(*found, strict=True)))

    def stream(
        self, images: Inputs, batch_size: int = 64, abstain: float = 0.0, limits: Limits | None = None
    ) -> Iterator[Prediction]:
        """Label images one after another, as many as there are: memory does not grow with their number.

        Args:
            images: as in `predict`; an iterable is read as it is needed, `batch_size` images ahead.
            batch_size: images per forward.
            abstain: an image with a lower calibrated confidence gets no label.
            limits: the largest files and images that are read.

        Every image gives one `Prediction`, in order. One that cannot be read has an `error`.
        """
        size, least = check_integer("batch_size", batch_size), check_range("abstain", abstain, 0, 1)
        if len(self.shape) == 1:
            raise UserError("stream takes images, and this model was trained on feature vectors; use predict")
        return self._stream(read_rows(images, self.shape, self.ranges, limits), size, least)

    def _stream(self, rows: Iterator[Row], size: int, least: float) -> Iterator[Prediction]:
        for batch in batched(rows, size):
            pixels = [row.x for row in batch if row.x is not None]
            columns = (column.tolist() for column in self._label(np.stack(pixels), size)) if pixels else [[]] * 4
            answers = zip(*columns, strict=True)
            for row in batch:
                if row.x is None:
                    yield Prediction(row.name, None, error=row.error)
                else:
                    label, probs, confidence, calibrated = next(answers)
                    name = self.classes[label] if calibrated >= least else None
                    yield Prediction(row.name, name, confidence, calibrated, tuple(probs))

    def _label(self, x: np.ndarray, size: int) -> Predictions:
        logits, calibrated = infer(self.model, self.calibrator, x, self.views, self.device, size)
        probs = logits.softmax(1)
        confidence, labels = probs.max(1)
        return Predictions(labels, probs, confidence, calibrated)

    def _vectors(self, rows: Any) -> np.ndarray:
        """Vectors N×D, or the views N×V×D of a bank."""
        x = rows.detach().cpu().numpy() if isinstance(rows, Tensor) else np.asarray(rows)
        x = x[None] if x.shape == self.shape else x
        if x.dtype.kind not in "iuf" or not x.ndim > 1 or tuple(x.shape[2 if x.ndim == 3 else 1 :]) != self.shape:
            got = f"{x.dtype} of shape {tuple(x.shape)}"
            raise UserError(f"the model was trained on feature vectors of length {self.shape[0]}, got {got}")
        if not len(x):
            raise UserError("there are no rows to predict; give at least one")
        return x if x.dtype == np.float16 else x.astype(np.float32, copy=False)

    def save_pretrained(self, folder: str | Path, name: str | None = None) -> Path:
        """Write the model with a model card (README.md), as for the Hugging Face Hub; `name` is the card's title."""
        folder = Path(folder)
        if folder.is_file():
            raise UserError(f"{folder} is a file; give a folder")
        folder.mkdir(parents=True, exist_ok=True)
        files = self.files() | ({} if self.summary is None else {"summary.json": json_bytes(self.summary)})
        card = model_card(name or folder.name, json.loads(files["model.json"]), self.summary)
        publish(folder, {**files, "README.md": card.encode()})
        return folder

    def push_to_hub(self, name: str, private: bool = False, message: str = "Upload model") -> str:
        """Upload the model and its card to the repository `name` (USER/NAME) of the hub; returns its address."""
        with tempfile.TemporaryDirectory() as folder:
            return upload(self.save_pretrained(folder, name), name, private, message)

    @classmethod
    def from_pretrained(
        cls, name: str | Path, device: torch.device | str = "auto", revision: str | None = None,
        trust_code: Trust = False,
    ) -> Predictor:  # fmt: skip
        """Load a folder, or the repository `name` (USER/NAME) of the hub at a `revision`; see `load`."""
        return cls.load(name if Path(name).is_dir() else download(str(name), revision), device, trust_code)

    def evaluate(self, examples: Examples, bins: int = 15) -> dict[str, Any]:
        """All test metrics on labeled examples."""
        counts = self.task.label_counts
        return evaluate(self.model, self.calibrator, examples, self.views, self.device, bins, counts)


def _pixels(row: Row) -> np.ndarray:
    if row.x is None:
        raise UserError(f"{row.name} cannot be read: {row.error}; remove it, or use stream, which goes on")
    return row.x


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of `size` items; the last may be shorter."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch
