"""What to look at in the data of a run, and what to label next: from a run folder or a folder of images to tables."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from .augment.views import ImageViews
from .bank.bank import Bank
from .bank.embed import input_side, make_encoder
from .bank.encoder import ForwardOptions, features
from .bank.onnx_engine import Engine, choose_engine
from .bank.shards import Shards
from .data.cache import cache_folder
from .data.images.decode import SkippedImages, image_chunks, open_images
from .data.images.store import Limits
from .data.ssl_data import SSLData, load_ssl
from .errors import UserError, check_integer, option_prefix
from .inference.predictor import Predictor
from .inference.shards import on_shards
from .models import Timm
from .models.backbone import Embedded
from .pool_audit import (
    Audit,
    AuditedImages,
    NextLabel,
    audit_images,
    next_labels,
    perceptual_hashes,
    suggest_labels,
    unit_rows,
)
from .pool_audit.arrays import blocks
from .pool_audit.unknown import ALPHA
from .report import write_report
from .run_config import DataConfig, RunConfig
from .runs.gallery import thumbnail
from .training.copies import keep_together, known_rows
from .utils.device import resolve_device, unit_features
from .utils.io import Columns, npz_bytes, read_yaml
from .utils.manifest import check_links, publish
from .utils.progress import phase
from .utils.serialization import Trust

__all__ = ["Audit", "NextLabel", "RunSource", "add_to_report", "audit_run", "suggest_from_images", "suggest_from_run"]
__all__ += ["suggest_from_shards"]

MOST_SHOWN = 24  # images of each kind in the report
CHUNK = 256  # images that are decoded and embedded at a time


@dataclass(frozen=True, kw_only=True)
class RunSource:
    """Where and how the images of a run are read again.

    Args:
        data: a folder or zip, if the images are elsewhere now.
        cache: folder of decoded images and of the bank, if it is not the run's.
        device: where the frozen network computes what no bank holds.
        engine: "torch", "onnx" or "auto".
        trust_code: import classes of other packages that the run names.
        progress: say what is being done.
        shards: folder of a sharded bank whose images take the place of the run's pool.
        sample: how many of them are drawn; all if not given.
    """

    data: str | None = None
    cache: str | None = None
    device: str = "auto"
    engine: Engine = "auto"
    trust_code: Trust = False
    progress: bool = False
    shards: str | None = None
    sample: int | None = None


def audit_run(
    run: str | os.PathLike[str], *, unknown: float = ALPHA, count: int = 20, source: RunSource | None = None
) -> Audit:
    """Look for unknown images, copies and doubtful labels in the data of a run, like `vcc-infuse audit`.

    Args:
        run: folder of a finished run with the preset frozen.
        unknown: an image with a p-value up to this counts as unknown.
        count: of images to label next.
        source: where the images are, if not where they were.

    >>> audit = audit_run("runs/x")  # doctest: +SKIP
    >>> print("\\n".join(audit.summary()))  # doctest: +SKIP
    """
    options = source or RunSource()
    images = _run_images(Path(run), options, hashed=True)
    with phase("comparing all images", shown=options.progress):
        return audit_images(images, alpha=unknown, count=check_integer("count", count, 0))


def add_to_report(audit: Audit, run: str | os.PathLike[str]) -> Path:
    """Keep the images to look at in the folder of the run, and show them in its report.html; returns that file."""
    folder = Path(run)
    row_of = {name: row for row, name in enumerate(audit.images.names)}
    kept: Columns = {"summary": np.array(audit.summary(), np.str_)}
    for issue in ("unknown", "duplicate", "doubtful_label", "next_to_label"):
        lines = audit.of(issue)[:MOST_SHOWN]
        images = (audit.images.picture(row_of[line.file]) for line in lines)
        columns = {
            "names": [line.file for line in lines],
            "groups": [line.group for line in lines],
            "texts": [line.suggestion for line in lines],
        }
        if lines:
            kept[f"{issue}_images"] = np.stack([thumbnail(image) for image in images])
            kept |= {f"{issue}_{name}": np.array(values, np.str_) for name, values in columns.items()}
            kept[f"{issue}_count"] = np.array(len(audit.of(issue)))
    publish(folder, {"audit.npz": npz_bytes(kept)})
    return write_report([folder], folder / "report.html")


def suggest_from_run(
    run: str | os.PathLike[str], count: int = 20, *, source: RunSource | None = None
) -> list[NextLabel]:
    """What to label next in the pool of a run, like `vcc-infuse suggest RUN`; see `audit_run`."""
    images = _run_images(Path(run), source or RunSource())
    if not len(images.rows("pool")):
        raise UserError(f"{run} has no unlabeled images to choose from; add some to its data")
    return next_labels(images, check_integer("count", count))


def suggest_from_images(
    data: str,
    count: int = 20,
    *,
    encoder: Timm | None = None,
    device: str = "auto",
    engine: Engine = "auto",
    limits: Limits | None = None,
) -> list[NextLabel]:
    """What to label first, like `vcc-infuse suggest --data`: typical images of the largest groups. Labels are ignored.

    Args:
        data: a folder or zip of images.
        count: of suggestions.
        encoder: the network that embeds; EfficientNet-Lite0 if not given.
        device: where it computes.
        engine: "torch", "onnx" or "auto".
        limits: the largest files and images that are read.
    """
    check_integer("count", count)
    network = encoder or Timm()
    with option_prefix("model"):
        side = input_side(network)
        frozen, _ = make_encoder(network, (side, side, 3))
    place = resolve_device(device)
    expects = frozen.preprocessing()
    views = ImageViews(expects.mean, expects.std) if expects else ImageViews((0.5,) * 3, (0.25,) * 3)
    fast = choose_engine(frozen, engine, device=place) or frozen
    names, rows = _embed_folder(data, (side, side, 3), fast.to(place).eval(), views, place, limits)
    return _first_labels(names, rows, count)


def suggest_from_shards(
    shards: str | os.PathLike[str], count: int = 20, *, sample: int | None = None
) -> list[NextLabel]:
    """What to label first of a sharded bank, or of `sample` rows of it; see `suggest_from_images`."""
    bank = Shards(shards)
    numbers = bank.sample(sample)
    return _first_labels([bank.name(row) for row in numbers.tolist()], bank.rows(numbers)[:, 0], count)


def _first_labels(names: Sequence[str], rows: np.ndarray, count: int) -> list[NextLabel]:
    chosen = suggest_labels(unit_rows(rows), count=check_integer("count", count))
    columns = zip(chosen.rows.tolist(), chosen.reasons, chosen.scores.tolist(), strict=True)
    return [NextLabel(names[row], reason, score, "") for row, reason, score in columns]


def _embed_folder(
    data: str,
    shape: tuple[int, int, int],
    encoder: torch.nn.Module,
    views: ImageViews,
    device: torch.device,
    limits: Limits | None,
) -> tuple[list[str], np.ndarray]:
    """Names and features of the images that can be read; only a chunk of the images is in memory at a time."""
    skipped = SkippedImages()
    names: list[str] = []
    rows: list[np.ndarray] = []
    options = ForwardOptions.default(device)
    with open_images(data, limits) as store:
        for chunk in image_chunks(store, shape, skipped, CHUNK):
            if len(chunk.x):
                names += [chunk.names[place] for place in chunk.rows.tolist()]
                images = views("plain", torch.from_numpy(chunk.x).to(device))
                rows.append(features(encoder, images, options).cpu().numpy())
    skipped.report()
    if not rows:
        raise UserError(f"none of the {skipped.count} images in {data} can be read; give another folder or zip")
    return names, np.concatenate(rows)


def _run_images(run: Path, options: RunSource, *, hashed: bool = False) -> AuditedImages:
    """The images of a run as its frozen network sees them."""
    predictor = Predictor.load(run, options.device, options.trust_code, engine=options.engine)
    if not isinstance(predictor.model.backbone, Embedded):
        kind = "images without a bank" if len(predictor.shape) == 3 else "feature vectors"
        raise UserError(f"{run} was trained on {kind}, but features of a frozen network are needed; "
                        "train with the preset frozen")  # fmt: skip
    config = _config(run, options)
    data = _load(config, run, predictor)
    rows = _unit_rows(predictor, data, config, options)
    assert isinstance(config.data, DataConfig)
    if config.data.group_by == "auto":  # as the run did
        data = keep_together(data, rows[known_rows(data)])
    dataset = data.dataset
    parts = np.full(len(dataset.train), "other", dtype="<U10")
    parts[data.split.pool] = "pool"
    parts[data.split.labeled] = "labeled"
    labels = np.full(len(dataset.train), -1)
    labels[data.split.labeled] = data.labeled_y
    names = list(dataset.train.names or map(str, range(len(dataset.train))))
    pixels = [dataset.train.x]
    if dataset.test is not None and dataset.validation is not None:
        parts[dataset.validation] = "validation"
        labels[dataset.validation] = dataset.test.y
    elif dataset.test is not None:
        parts = np.concatenate([parts, np.full(len(dataset.test), "test")])
        labels = np.concatenate([labels, dataset.test.y])
        names += dataset.test.names or [f"test {number}" for number in range(len(dataset.test))]
        pixels.append(dataset.test.x)
    if options.shards is not None:
        kept = np.flatnonzero(parts != "pool")
        pool_names, pool_rows = _pool_of_shards(predictor, options)
        rows = np.concatenate([rows[kept], pool_rows])
        labels = np.concatenate([labels[kept], np.full(len(pool_rows), -1)])
        parts = np.concatenate([parts[kept], np.full(len(pool_rows), "pool")])
        names = [*(names[row] for row in kept), *pool_names]
        pixels = []
    hashes = _hashes(pixels, options.progress) if hashed and pixels else None
    return AuditedImages(rows, labels, parts, names, predictor.classes, _probs(predictor, rows), hashes, pixels)


def _pool_of_shards(predictor: Predictor, options: RunSource) -> tuple[list[str], np.ndarray]:
    """Names and features of the rows of a sharded bank, as the head sees them."""
    shards = Shards(str(options.shards))
    views = on_shards(predictor, shards).views
    numbers = shards.sample(options.sample)
    rows = [
        views.plain(torch.from_numpy(shards.rows(numbers[block])[:, 0])).half().numpy()
        for block in blocks(len(numbers))
    ]
    return [shards.name(row) for row in numbers.tolist()], np.concatenate(rows)


def _config(run: Path, options: RunSource) -> RunConfig:
    """The options of the run, with the places that are given instead."""
    check_links(run, ["config.yaml"])
    stored = read_yaml(run / "config.yaml")
    folder = stored.get("cache")
    # Nothing is created where somebody's configuration says.
    cache = options.cache or (folder if folder and Path(folder).is_dir() else None)
    given = {"cache": cache} | ({"data": options.data} if options.data else {})
    config = RunConfig.from_options({**stored, **given}, trust_code=options.trust_code)
    if isinstance(config.data, DataConfig) and config.data.data == "arrays":
        raise UserError(f"{run} was trained on arrays, which are not kept; use the functions of vcc_infuse.pool_audit")
    return config


def _load(config: RunConfig, run: Path, predictor: Predictor) -> SSLData:
    """The images, and which of them were labeled."""
    assert isinstance(config.data, DataConfig)
    train = config.train_config()
    data = load_ssl(
        **vars(config.data), cache=config.cache, seed=train.seed, all_labels=config.build("algorithm").all_labels,
        progress=train.progress,
    )  # fmt: skip
    if data.dataset.classes != predictor.classes:
        now = ", ".join(data.dataset.classes)
        raise UserError(f"the classes of the data are no longer those of {run}, but {now}; train again")
    if data.dataset.shape != predictor.shape:
        raise UserError(
            f"the images now have shape {data.dataset.shape}, those of {run} {predictor.shape}; train again"
        )
    return data


def _unit_rows(predictor: Predictor, data: SSLData, config: RunConfig, options: RunSource) -> np.ndarray:
    """Features of all images, from the bank of the run if it is in the cache, else embedded in their plain view."""
    dataset = data.dataset
    backbone = predictor.model.backbone
    assert isinstance(backbone, Embedded)
    recipe = predictor.fingerprint["network"] if predictor.fingerprint is not None else None
    if recipe and (cache_folder(config.cache) / "banks" / recipe).is_dir():
        assert isinstance(predictor.views, ImageViews)
        bank = Bank(
            dataset, backbone.encoder, predictor.views, config.bank, cache=config.cache, device=predictor.device,
            engine=options.engine,
        ).build(progress=options.progress, plain=True)  # fmt: skip
        mean, std = (values.cpu() for values in (backbone.mean, backbone.std))
        rows = [
            unit_features(torch.from_numpy(np.array(part[block, 0])), mean, std).half().numpy()
            for part in bank.features.values()
            for block in blocks(len(part))
        ]
        return np.concatenate(rows)
    separate = dataset.test is not None and dataset.validation is None
    pixels = [dataset.train.x, *([dataset.test.x] if dataset.test is not None and separate else [])]
    return np.concatenate([predictor.embed(x, progress=options.progress) for x in pixels])


@torch.no_grad()
def _probs(predictor: Predictor, rows: np.ndarray) -> np.ndarray:
    """What the trained head says of features, of shape (images, classes)."""
    backbone = predictor.model.backbone
    assert isinstance(backbone, Embedded)
    probs = []
    for block in blocks(len(rows)):
        values = torch.from_numpy(rows[block]).float().to(predictor.device)
        probs.append(predictor.model.head(backbone.layers(values)).softmax(1).cpu().numpy())
    return np.concatenate(probs)


def _hashes(pixels: list[np.ndarray], progress: bool) -> np.ndarray | None:
    """Perceptual hashes of gray and color images; None of others."""
    channels = pixels[0].shape[-1]
    if channels not in (1, 3):
        return None
    with phase("hashing the images", shown=progress):
        images = (image[..., 0] if channels == 1 else image for x in pixels for image in x)
        return perceptual_hashes(np.asarray(image) for image in images)
