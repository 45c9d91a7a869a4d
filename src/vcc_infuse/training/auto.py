"""What the preset `auto` decides: which way to train fits the data, how long it will take, and whether to fine-tune."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from ..algorithms import Supervised
from ..bank.bank import Bank
from ..data.split import hold_out
from ..data.ssl_data import SSLData
from ..errors import UserError
from ..models import Backbone, Timm
from ..models.linear_probe import fit_probe
from ..utils.device import unit_features
from .presets import FINETUNE
from .summary import peak_memory
from .trainer import Trainer

PATIENCE = 10.0  # seconds after which no further step is tried only to tell how long a run takes
TINY = 24  # pixels per side below which a network pretrained on photographs has nothing to look at


class Choice(NamedTuple):
    """A preset and why it fits."""

    preset: str
    reason: str


class Cost(NamedTuple):
    """What a run is expected to take."""

    seconds: float
    megabytes: float | None


def choose_preset(data: SSLData, encoder: Backbone | None = None) -> Choice:
    """`frozen` for images large enough to embed, if pretrained weights are at hand; else `scratch`."""
    shape = data.dataset.shape
    if len(shape) == 1:
        return Choice("scratch", "the examples are vectors")
    if min(shape[:2]) < TINY:
        return Choice("scratch", f"images of {shape[0]}×{shape[1]} pixels are too small for a pretrained network")
    encoder = encoder or Timm()
    try:
        encoder.setup((3, 96, 96))
        source = encoder.load_pretrained()
    except UserError as fault:
        return Choice("scratch", str(fault))
    return Choice("frozen", f"pretrained weights from {source}") if source else Choice("scratch", "weights is none")


def embedding_cost(bank: Bank) -> Cost:
    """Time for what a bank still has to embed."""
    views = bank.missing()
    return Cost(views * bank.seconds_per_view() if views else 0.0, peak_memory())


def training_cost(trainer: Trainer, data: SSLData, steps: int = 2) -> Cost:
    """Time for all steps of a run, from a few of them on a trainer that is thrown away."""
    trial = Trainer(
        trainer.model, trainer.algorithm, trainer.calibrator, None, trainer.config,
        out=None, tracker="none", on_nan="stop",
    )  # fmt: skip
    trial.prepare(data)
    seconds: list[float] = []
    while trainer.steps and len(seconds) <= steps and sum(seconds) < PATIENCE:
        began = time.perf_counter()
        trial.train_step(len(seconds))
        seconds.append(time.perf_counter() - began)
    later = seconds[1:] or seconds  # the first step warms up
    return Cost(statistics.median(later) * trainer.steps if later else 0.0, peak_memory())


class Advice(NamedTuple):
    """Error on labels that were kept aside: of a probe on frozen features, and after fine-tuning a few steps."""

    frozen: float
    finetuned: float
    labels: int

    @property
    def preset(self) -> str:
        """The better of the two; ties go to the cheaper one. A difference of one image in ten is needed to tell."""
        return "finetune" if self.finetuned < self.frozen - 0.1 else "frozen"


def compare_finetuning(bank_data: SSLData, model: Backbone, options: dict[str, Any], steps: int = 30) -> Advice | None:
    """A third of the labels is kept aside and predicted by a probe and by a fine-tuned network.

    None where the classes have too few labels to keep any aside.
    """
    bank = bank_data.dataset.bank
    counts = np.bincount(bank_data.labeled_y)
    if bank is None or counts.min() < 3:
        return None
    y = bank_data.dataset.train.y
    split = hold_out(bank_data.split, y, 1 / 3, bank_data.dataset.classes)
    kept, held = split.labeled, split.held_out
    views = [torch.tensor(values) for values in (bank_data.dataset.mean, bank_data.dataset.std)]
    features = [
        unit_features(torch.from_numpy(np.array(bank.features["train"][rows, 0])), *views) for rows in (kept, held)
    ]
    truth = torch.from_numpy(y[held])
    probe = fit_probe(features[0], torch.from_numpy(y[kept]), len(counts))
    frozen = float(((features[1] @ probe.weight.T + probe.bias).argmax(1) != truth).float().mean())
    images = replace(bank_data, dataset=replace(bank.source, test=None), split=replace(split, held_out=held[:0]))
    recipe = {name: value for name, value in FINETUNE.items() if name != "model"}
    trainer = Trainer(model, Supervised(), **{**recipe, "steps": steps, "progress": False, **options})
    trainer.fit(images)
    found = trainer.predictor().predict(bank.source.train.x[held]).labels
    return Advice(frozen, float((found.cpu() != truth).float().mean()), len(held))
