"""A run on a sharded bank: what it has to say of images that are embedded already."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import cast

from ..augment.views import BankViews, ImageViews
from ..bank.sharding import Frozen, described
from ..bank.shards import Shards, network_digest
from ..errors import UserError, check_integer, check_range
from ..models import Classifier
from ..models.backbone import Backbone, Embedded
from .known import check_unknown
from .predictor import Prediction, Predictor


def network_of_run(predictor: Predictor) -> Frozen:
    """The frozen network of a run with the size and colors of its images, for `embed_shards`.

    >>> embed_shards("photos", "bank", network_of_run(Predictor.load("runs/x")))  # doctest: +SKIP
    """
    backbone, views = _frozen(predictor)
    height, width, channels = predictor.shape
    if height != width:
        raise UserError(f"the run takes images of {height}×{width} pixels, and shards need a square; train with --size")
    return described(cast(Backbone, backbone.encoder.cpu()), views, (height, width, channels))


def _frozen(predictor: Predictor) -> tuple[Embedded, ImageViews]:
    """The frozen network of a run, and what makes images its input."""
    backbone, views = predictor.model.backbone, predictor.views
    if not isinstance(backbone, Embedded) or not isinstance(views, ImageViews):
        raise UserError("the run has no frozen network, so it cannot use shards; train with the preset frozen")
    if predictor.ranges:
        raise UserError("the run scales images of more than 8 bits by values of its own, which shards do not know; "
                        "give it the images themselves")  # fmt: skip
    return backbone, views


def on_shards(predictor: Predictor, shards: Shards) -> Predictor:
    """The part of a model that takes features; shards of another network, or of other images, are refused."""
    backbone, images = _frozen(predictor)
    if network_digest(backbone.encoder, images, predictor.shape) != shards.recipe.network:
        options = ("name", "weights", "input_size")
        ours = {name: getattr(backbone.encoder, name, None) for name in options} | {"size": predictor.shape[0]}
        theirs = shards.recipe.model | {"size": shards.recipe.shape[0]}
        pairs = [" ".join(f"{name} {value}" for name, value in network.items()) for network in (theirs, ours)]
        problem = f"{shards.folder} was embedded by another network ({pairs[0]}) than the run's ({pairs[1]})"
        raise UserError(f"{problem}; embed with --like and the folder of the run")
    views = BankViews(
        tuple(backbone.mean.tolist()), tuple(backbone.std.tolist()), (shards.recipe.weak, shards.recipe.strong)
    )
    model = Classifier(backbone.layers, predictor.model.head).eval()
    return replace(predictor, model=model, views=views, shape=(shards.recipe.width,), engine="torch")


def predict_shards(
    predictor: Predictor, shards: Shards, *, batch_size: int = 4096, abstain: float = 0.0, unknown: float = 0.0
) -> Iterator[Prediction]:
    """Label all images of a sharded bank, one after another; the options are those of `Predictor.stream`.

    >>> run = Predictor.load("runs/x")  # doctest: +SKIP
    >>> labels = [row.label for row in predict_shards(run, Shards("bank"))]  # doctest: +SKIP
    """
    size = check_integer("batch_size", batch_size)
    least = check_range("abstain", abstain, 0, 1)
    check_unknown(unknown, predictor.known)
    return _predict(on_shards(predictor, shards), shards, size, least, unknown)


def _predict(model: Predictor, shards: Shards, size: int, least: float, foreign: float) -> Iterator[Prediction]:
    for start, features in shards.blocks(size):
        columns = (column.tolist() for column in model.predict(features[:, 0], size))
        for row, (label, probs, confidence, calibrated, unknown, p) in enumerate(zip(*columns, strict=True), start):
            best = model.classes[label]
            answer = best if calibrated >= least and not p <= foreign else None  # p may be NaN
            yield Prediction(shards.name(row), answer, best, confidence, calibrated, tuple(probs), unknown, p)
