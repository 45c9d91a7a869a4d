"""`vcc-infuse select RUN --pool IMAGES`: rank images by INFUSE; only a chunk of them is in memory at a time.

A run trained with INFUSE, RobustINFUSE or AlignedINFUSE stores the gradient that it ranks by (VCC-INFUSE, IJCAI 2024).
An image scores high if a step on its pseudo label would lower the loss there. Images below the confidence threshold
come last, by confidence.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

import numpy as np
import torch

from ..bank.shards import Shards
from ..data.images.decode import SkippedImages, image_chunks, open_images
from ..data.images.store import Store, is_image
from ..errors import UserError
from ..inference.predictor import Predictor
from ..inference.shards import on_shards
from ..selectors import INFUSE
from ..selectors.infuse.influence import influence
from ..selectors.infuse.robust import HARMLESS_DRAW, random_scores
from ..selectors.ranking import QUOTAS, Scored, best, order
from ..utils.io import table_cell
from ..utils.seeding import preserve_mode_and_rng, seed_chunk
from .finished_run import add_common, check_output, image_predictor, run_parser, write_output
from .parser import integer, limits_of, number, one_of

# Fixed, because the random strong view of an image depends on its position in the chunk.
CHUNK = 256


def run(argv: Sequence[str]) -> None:
    """Write path, score, pseudo label, confidence and whether it is kept, for each image of the pool."""
    options = read(argv)
    predictor = image_predictor(options)
    if predictor.direction is None:
        remedy = "train with --selector INFUSE (--selector.keep 1 trains on every example)"
        raise UserError(f"{options.run} stores no influence direction, because it was trained without INFUSE; {remedy}")
    names: Sequence[str]
    if options.shards:
        shards = Shards(options.shards)
        names, table = shards.names, scan_shards(predictor, shards, options.threshold)
    else:
        with open_images(options.pool, limits_of(options)) as store:
            names, table = scan(predictor, store, options.threshold)
    kept = np.zeros(len(names), dtype=bool)
    kept[chosen(table, options, len(predictor.classes))] = True
    rows = table
    if options.kept_only:
        rows = table.take(np.flatnonzero(kept[table.ids]))
        rows = rows.take(order(rows))
    write_output(options.output, lambda handle: write_rows(rows, kept, names, predictor.classes, handle))
    confident = f"{table.selected.sum()} reach confidence {options.threshold:g}"
    print(f"kept {kept.sum()} of {len(table.ids)} images; {confident}", file=sys.stderr)


def read(argv: Sequence[str]) -> argparse.Namespace:
    """The options, checked before anything is loaded."""
    about = "Rank a pool of images with a run trained with INFUSE, RobustINFUSE or AlignedINFUSE."
    parser = run_parser("select", about)
    parser.add_argument("--pool", help="a folder or zip of images")
    parser.add_argument("--shards", metavar="BANK", help="folder of `embed --shards`, in place of --pool; gradients "
                        "come from a strong view if it has some, else from the plain one")  # fmt: skip
    parser.add_argument("--keep", type=number(0, 1, open_low=True), default=0.1, help="fraction to keep (0.1)")
    parser.add_argument("--threshold", type=number(0, 1), default=0.95, help="confidence of a pseudo label (0.95)")
    parser.add_argument("--strategy", **one_of("top", "drop_harmful"), default="top",
                        help="top scores as INFUSE, or a draw from the harmless as RobustINFUSE (top)")  # fmt: skip
    parser.add_argument("--quota", **one_of(*QUOTAS), default="none",
                        help="divide the places among pseudo classes, so that none is left out (none)")  # fmt: skip
    parser.add_argument("--seed", type=integer(0), default=0, help="seed of the draw of drop_harmful (0)")
    parser.add_argument("--kept-only", action="store_true", help="write only the kept images, best first")
    add_common(parser, "CSV file to write; - is the screen", "-")
    options = parser.read(argv)
    if bool(options.pool) == bool(options.shards):
        raise UserError("select needs --pool with a folder or zip of images, or --shards with a folder of shards")
    check_output(options.output, options.overwrite, options.run, [options.pool or options.shards])
    if options.pool and Path(options.pool).is_file() and is_image(options.pool):
        raise UserError(f"--pool {options.pool}: one image cannot be ranked; give a folder or zip of images")
    return options


def scan(predictor: Predictor, store: Store, threshold: float) -> tuple[list[str], Scored]:
    """All names, and one row per readable image; its id is the position of its name."""
    skipped = SkippedImages()
    names: list[str] = []
    tables: list[Scored] = []
    with preserve_mode_and_rng(predictor.model, predictor.calibrator, device=predictor.device):
        for chunk in image_chunks(store, predictor.shape, skipped, CHUNK, predictor.ranges):
            names.extend(chunk.names)
            if len(chunk.x):
                seed_chunk(chunk.start // CHUNK)
                tables.append(score_images(predictor, chunk.start + chunk.rows, chunk.x, threshold))
    skipped.report()
    if not tables:
        raise UserError(f"--pool: none of its {skipped.count} images can be read; give another folder or zip")
    return names, Scored.concat(tables)


def scan_shards(predictor: Predictor, shards: Shards, threshold: float) -> Scored:
    """One line per row of a sharded bank."""
    model = on_shards(predictor, shards)
    tables = []
    with preserve_mode_and_rng(model.model, model.calibrator, device=model.device):
        for start, x in shards.blocks():
            seed_chunk(start)
            tables.append(score_images(model, np.arange(start, start + len(x)), x, threshold))
    return Scored.concat(tables)


def chosen(table: Scored, options: argparse.Namespace, classes: int) -> np.ndarray:
    """Ids of the images to keep."""
    if options.strategy == "drop_harmful":
        table = random_scores(table, np.random.default_rng([options.seed, HARMLESS_DRAW, 0]))
    ids: np.ndarray = table.ids[best(table, INFUSE(keep=options.keep).budget(len(table.ids)), options.quota, classes)]
    return ids


@torch.no_grad()
def score_images(predictor: Predictor, ids: np.ndarray, x: np.ndarray, threshold: float) -> Scored:
    """Label and confidence come from the plain image, the gradient from a strong view. Modules are in eval mode."""
    predicted = predictor.predict(x)
    selected = predicted.calibrated >= threshold
    scores = torch.zeros(len(x))
    if selected.any():
        strong = predictor.views("strong", torch.from_numpy(x).to(predictor.device))[selected.to(predictor.device)]
        logits, features = predictor.model(strong)
        labels = predicted.labels[selected].to(logits.device)
        assert predictor.direction is not None
        change = influence(features.float(), logits.float(), targets=labels, direction=predictor.direction)
        scores[selected] = INFUSE().value(change).cpu()
    return Scored(ids, scores.numpy(), selected.numpy(), predicted.calibrated.numpy(), predicted.labels.numpy())


def write_rows(table: Scored, kept: np.ndarray, names: Sequence[str], classes: Sequence[str], handle: TextIO) -> None:
    """The columns path, score (higher is kept first; 0 below the threshold), label, confidence, kept."""
    writer = csv.writer(handle)
    writer.writerow(["path", "score", "label", "confidence", "kept"])
    for place, score, _, confidence, label in zip(*table, strict=True):
        texts = (table_cell(names[place]), f"{score:.9g}", table_cell(classes[label]), f"{confidence:.9g}")
        writer.writerow((*texts, int(kept[place])))
