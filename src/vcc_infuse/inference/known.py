"""What a model keeps of its labeled images, to tell images of no class: their features and distances to each other."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from ..data.batches import Views
from ..errors import OptionError, UserError, check_range
from ..models import Classifier
from ..models.backbone import Embedded
from ..pool_audit import KnownRows
from ..pool_audit.unknown import NEIGHBORS
from ..utils.progress import Progress
from .evaluate import chunks

BATCH = 64
MOST = 5000  # labeled images that are kept, so that a model stays small


def keep_known(features: Tensor, labels: np.ndarray) -> KnownRows:
    """From features of unit length, of shape (labels, width), rounded as they are saved, and their classes."""
    return KnownRows.of(features.half().float().cpu().numpy(), labels)


def sample_by_class(labels: np.ndarray, most: int = MOST, seed: int = 0) -> np.ndarray:
    """Positions of at most `most` labels, ascending, of every class as many as of the others as far as it has them."""
    order = np.random.default_rng(seed).permutation(len(labels))
    place = np.empty(len(labels), np.int64)  # of each label among those of its class
    for label in np.unique(labels):
        members = order[labels[order] == label]
        place[members] = np.arange(len(members))
    return np.sort(order[np.argsort(place[order], kind="stable")][:most])


def known_tensors(known: KnownRows) -> dict[str, Tensor]:
    """What model.safetensors holds of them."""
    numbers = {"known.means": known.means, "known.own": known.own}
    return {"known.rows": torch.from_numpy(known.rows).half()} | {k: torch.from_numpy(v) for k, v in numbers.items()}


def read_known(model: Classifier, tensors: dict[str, Tensor]) -> KnownRows:
    """The opposite of `known_tensors`."""
    rows, means, own = (tensors[f"known.{name}"].float().numpy() for name in ("rows", "means", "own"))
    width = tuple(model.backbone.mean.shape) if isinstance(model.backbone, Embedded) else ()
    if not rows.shape[1:] == means.shape[1:] == width or not len(rows) or not len(means) or rows.shape[:1] != own.shape:
        raise ValueError(f"known.rows of shape {rows.shape} does not fit the network")
    return KnownRows(rows, means, own, min(NEIGHBORS, len(rows)))


@contextmanager
def seen_features(model: nn.Module, known: KnownRows | None) -> Iterator[list[Tensor]]:
    """Collect what the trained layers are given while images pass, if there is something to compare it with."""
    batches: list[Tensor] = []
    if known is None:
        yield batches
        return
    whole = model.backbone
    assert isinstance(whole, nn.Module)
    layers = whole.layers if isinstance(whole, Embedded) else whole  # a model of features has no network before them
    keep = layers.register_forward_pre_hook(lambda _, inputs: batches.append(inputs[0].float().cpu()))
    try:
        yield batches
    finally:
        keep.remove()


def judge(known: KnownRows | None, batches: list[Tensor], count: int) -> tuple[Tensor, Tensor]:
    """Distance and p-value of `count` images with these features; NaN if nothing is known."""
    if known is None:
        nothing = torch.full((count,), math.nan)
        return nothing, nothing
    judged = known.judge(torch.cat(batches).numpy())
    return torch.from_numpy(judged.score), torch.from_numpy(judged.p).float()


def check_unknown(unknown: float, known: KnownRows | None) -> None:
    """Refuse a bound of the p-value that this model cannot judge by; 0 asks for nothing."""
    check_range("unknown", unknown, 0, 1)
    if unknown and known is None:
        requirement = "needs a model that was trained on a bank, and this one was not"
        raise OptionError("unknown", unknown, requirement, "train with the preset frozen, or leave it out")
    if known is not None and 0 < unknown < known.least_p:
        requirement = f"must be at least {known.least_p:.3g}, the smallest p-value with {len(known.rows)} labels"
        raise OptionError("unknown", unknown, requirement, "raise it, or label more images")


@torch.no_grad()
def embed_images(
    model: nn.Module, x: np.ndarray, views: Views, device: torch.device, *, progress: bool = False
) -> np.ndarray:
    """What the trained layers of a model on a bank are given for these images, of shape (images, width), float16."""
    backbone = model.backbone
    if not isinstance(backbone, Embedded):
        raise UserError("the model has no frozen network; train with the preset frozen")
    rows = []
    with Progress("embedding", len(x), "images", progress) as shown:
        for images in chunks(x, views, device, BATCH):
            rows.append(backbone.embed(images).half().cpu().numpy())
            shown.advance(len(images))
    return np.concatenate(rows)
