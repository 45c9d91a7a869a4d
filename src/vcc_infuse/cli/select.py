"""`vcc-infuse select RUN --pool IMAGES`: rank images by INFUSE, in a stream: pixels, features and names never pile up.

The run stored the gradient of its labeled set (VCC-INFUSE, IJCAI 2024); an image scores high if a step on its pseudo
label would lower the loss there. Images below the confidence threshold teach nothing and come last, by confidence.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TextIO

import numpy as np
import torch

from ..data.image_stream import SkippedImages, image_chunks, open_images
from ..data.images.file_store import Store
from ..data.sources.layout import is_image
from ..errors import UserError
from ..predictor import Predictor
from ..selectors import INFUSE
from ..selectors.infuse.selector import influence_scores
from ..selectors.out_of_core import DiskNames, DiskTable, RandomScores, best_of_stream, temp_file
from ..selectors.ranking import QUOTAS, Scored, merge
from ..utils.seeding import preserve_mode_and_rng, seed_chunk
from .parsing import Parser
from .predict import image_predictor, write_text

# Fixed, because the random draw of an image's strong view depends on its place in the chunk.
CHUNK = 256


def run(argv: Sequence[str]) -> None:
    """Write path, score, pseudo label, confidence and whether it is kept, for each image of the pool."""
    options = read(argv)
    predictor = image_predictor(options.run)
    if predictor.direction is None:
        again = f"vcc-infuse train --config {options.run}/config.yaml --out NEW"
        raise UserError(f"{options.run} comes from a version that stored no ranking direction; train again: {again}")
    folder = None if options.output == "-" else Path(options.output).parent
    with open_images(options.pool) as store, temp_file(folder) as file, temp_file(folder) as names_file:
        spill, names = DiskTable(file), DiskNames(names_file)
        scan(predictor, store, spill, names, options.threshold)
        kept = np.zeros(len(names), dtype=bool)
        kept[chosen(spill, options, len(predictor.classes))] = True
        table: Iterable[Scored] = [only(kept, spill)] if options.kept_only else spill
        write_text(options.output, lambda handle: write_rows(table, kept, names, predictor.classes, handle))
    confident = f"{spill.selected} reach confidence {options.threshold:g}"
    print(f"kept {kept.sum()} of {spill.count} images; {confident}", file=sys.stderr)


def read(argv: Sequence[str]) -> argparse.Namespace:
    """The options, checked before anything is loaded."""
    parser = Parser(
        prog="vcc-infuse select", description="Rank a pool of images with a trained run.", allow_abbrev=False
    )
    parser.add_argument("run", help="folder of a finished run")
    parser.add_argument("--pool", required=True, help="a folder or zip of images")
    parser.add_argument("--keep", type=float, default=0.1, help="share of the images to keep (0.1)")
    parser.add_argument("--threshold", type=float, default=0.95, help="confidence a pseudo label needs (0.95)")
    parser.add_argument("--strategy", choices=("top", "drop_harmful"), default="top",
                        help="keep the top scores, or draw at random from all that do no harm (top)")  # fmt: skip
    parser.add_argument("--quota", choices=QUOTAS, default="none",
                        help="share the places among pseudo classes, so that none is left out (none)")  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="of the draw with --strategy drop_harmful (0)")
    parser.add_argument("-o", "--output", default="-", help="CSV file to write; - is the screen")
    parser.add_argument("--kept-only", action="store_true", help="write the kept images alone, best first")
    options = parser.read(argv)
    if not 0 < options.keep <= 1:
        raise UserError(f"--keep {options.keep:g}: must lie in (0, 1]; give the share to keep, such as 0.1")
    if not 0 <= options.threshold <= 1:
        raise UserError(f"--threshold {options.threshold:g}: must lie in [0, 1]; 0.95 is usual")
    if options.seed < 0:
        raise UserError(f"--seed {options.seed}: must be at least 0; give another number")
    if options.output != "-" and not Path(options.output).parent.is_dir():
        raise UserError(f"-o {options.output}: there is no folder {Path(options.output).parent}; make it first")
    if Path(options.output).is_dir():
        raise UserError(f"-o {options.output}: is a folder; give the name of a CSV file")
    if Path(options.pool).is_file() and is_image(options.pool):
        raise UserError(f"--pool {options.pool}: one image cannot be ranked; give a folder or a zip of images")
    return options


def scan(predictor: Predictor, store: Store, spill: DiskTable, names: DiskNames, threshold: float) -> None:
    """A row for every readable image into `spill`, all names into `names`."""
    broken = SkippedImages()
    with preserve_mode_and_rng(predictor.model, predictor.calibrator, device=predictor.device):
        for chunk in image_chunks(store, predictor.shape, broken, CHUNK):
            names.extend(chunk.names)
            if len(chunk.x):
                seed_chunk(chunk.start // CHUNK)
                spill.add(judge(predictor, chunk.start + chunk.rows, chunk.x, threshold))
    broken.report()
    if not spill.count:
        raise UserError(f"--pool: none of its {broken.count} images can be read")


def chosen(spill: DiskTable, options: argparse.Namespace, classes: int) -> np.ndarray:
    """Ids of the images to keep."""
    rows = RandomScores(spill, options.seed) if options.strategy == "drop_harmful" else spill
    return best_of_stream(rows, INFUSE(keep=options.keep).budget(spill.count), options.quota, classes).ids


def only(kept: np.ndarray, spill: DiskTable) -> Scored:
    """The kept rows, best first."""
    return merge([rows.take(np.flatnonzero(kept[rows.ids])) for rows in spill])


@torch.no_grad()
def judge(predictor: Predictor, ids: np.ndarray, x: np.ndarray, threshold: float) -> Scored:
    """Label and confidence from the plain image, the gradient from a strong view; modules are in eval mode here."""
    found = predictor.predict(x)
    selected = found.calibrated >= threshold
    scores = torch.zeros(len(x))
    if selected.any():
        strong = predictor.views("strong", torch.from_numpy(x).to(predictor.device))[selected.to(predictor.device)]
        logits, features = predictor.model(strong)
        labels, ones = found.labels[selected].to(logits.device), torch.ones(len(strong), device=logits.device)
        assert predictor.direction is not None
        influence = influence_scores(predictor.direction, features.float(), logits.float().softmax(1), labels, ones)
        scores[selected] = INFUSE().value(influence).cpu()
    return Scored(ids, scores.numpy(), selected.numpy(), found.calibrated.numpy(), found.labels.numpy())


def write_rows(
    table: Iterable[Scored], kept: np.ndarray, names: DiskNames, classes: Sequence[str], handle: TextIO
) -> None:
    """path, score (higher is kept earlier; 0 below the threshold), label, confidence, kept."""
    writer = csv.writer(handle)
    writer.writerow(["path", "score", "label", "confidence", "kept"])
    for chunk in table:
        columns = zip(*(column.tolist() for column in chunk), strict=True)
        for place, score, _, confidence, label in columns:
            row = (names[place], f"{score:.9g}", classes[label], f"{confidence:.9g}", int(kept[place]))
            writer.writerow(row)
