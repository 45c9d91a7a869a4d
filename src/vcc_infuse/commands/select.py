"""`vcc-infuse select RUN --pool IMAGES`: rank images by INFUSE, in a stream: pixels, features and names never pile up.

The run stored the gradient of its labelled set (VCC-INFUSE, IJCAI 2024); an image scores high if a step on its pseudo
label would lower the loss there. Images below the confidence threshold teach nothing and come last, by confidence.
"""

from __future__ import annotations

import argparse
import csv
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, TextIO

import numpy as np
import torch

from ..data.names import Names
from ..data.paths import is_image
from ..data.store import Store
from ..errors import UserError
from ..predictor import Predictor
from ..selectors import INFUSE
from ..selectors.infuse import score_chunk
from ..selectors.ranking import Scored, top_stream
from ..selectors.rest import at_rest, seed_chunk
from .images import Broken, decoded, open_images
from .predict import image_predictor, write_text
from .simple import Parser

# Fixed, because the random draw of an image's strong view depends on its place in the chunk.
CHUNK = 256
ROW = np.dtype([("id", "i8"), ("score", "f4"), ("selected", "?"), ("confidence", "f8"), ("label", "i4")])


def run(argv: Sequence[str]) -> None:
    """Write path, score, pseudo label, confidence and whether it is kept, for each image of the pool."""
    options = read(argv)
    predictor = image_predictor(options.run)
    if predictor.direction is None:
        again = f"vcc-infuse train --config {options.run}/config.yaml --out NEW"
        raise UserError(f"{options.run} comes from a version that stored no ranking direction; train again: {again}")
    folder = None if options.output == "-" else Path(options.output).parent
    with open_images(options.pool) as store, scratch(folder) as file, scratch(folder) as names_file:
        spill, names = Spill(file), Names(names_file)
        best = rank(predictor, store, spill, names, options.keep, options.threshold)
        kept = np.zeros(len(names), dtype=bool)
        kept[best.ids] = True
        table: Iterable[Scored] = [best] if options.kept_only else spill
        write_text(options.output, lambda handle: write_rows(table, kept, names, predictor.classes, handle))
    confident = f"{spill.selected} reach confidence {options.threshold:g}"
    print(f"kept {len(best.ids)} of {spill.count} images; {confident}", file=sys.stderr)


def scratch(folder: Path | None) -> IO[bytes]:
    """A file without a name that is gone when closed, beside the output, where there must be room anyway."""
    return tempfile.TemporaryFile(dir=folder)


def read(argv: Sequence[str]) -> argparse.Namespace:
    """The options, checked before anything is loaded."""
    parser = Parser(
        prog="vcc-infuse select", description="Rank a pool of images with a trained run.", allow_abbrev=False
    )
    parser.add_argument("run", help="folder of a finished run")
    parser.add_argument("--pool", required=True, help="a folder or zip of images")
    parser.add_argument("--keep", type=float, default=0.1, help="share of the images to keep (0.1)")
    parser.add_argument("--threshold", type=float, default=0.95, help="confidence a pseudo label needs (0.95)")
    parser.add_argument("-o", "--output", default="-", help="CSV file to write; - is the screen")
    parser.add_argument("--kept-only", action="store_true", help="write the kept images alone, best first")
    options = parser.read(argv)
    if not 0 < options.keep <= 1:
        raise UserError(f"--keep {options.keep:g}: must lie in (0, 1]; give the share to keep, such as 0.1")
    if not 0 <= options.threshold <= 1:
        raise UserError(f"--threshold {options.threshold:g}: must lie in [0, 1]; 0.95 is usual")
    if options.output != "-" and not Path(options.output).parent.is_dir():
        raise UserError(f"-o {options.output}: there is no folder {Path(options.output).parent}; make it first")
    if Path(options.output).is_dir():
        raise UserError(f"-o {options.output}: is a folder; give the name of a CSV file")
    if Path(options.pool).is_file() and is_image(options.pool):
        raise UserError(f"--pool {options.pool}: one image cannot be ranked; give a folder or a zip of images")
    return options


def rank(predictor: Predictor, store: Store, spill: Spill, names: Names, keep: float, threshold: float) -> Scored:
    """The images to keep, best first; a row for every readable image is left in `spill`, all names in `names`."""
    selector, broken = INFUSE(keep=keep), Broken()
    with at_rest(predictor.model, predictor.calibrator, device=predictor.device):
        for chunk in decoded(store, predictor.shape, broken, CHUNK):
            names.extend(chunk.names)
            if len(chunk.x):
                seed_chunk(chunk.start // CHUNK)
                spill.add(judge(predictor, selector, chunk.start + chunk.rows, chunk.x, threshold))
    broken.tell()
    if not spill.count:
        raise UserError(f"--pool: none of its {broken.count} images can be read")
    return top_stream(spill, selector.budget(spill.count))


@torch.no_grad()
def judge(predictor: Predictor, selector: INFUSE, ids: np.ndarray, x: np.ndarray, threshold: float) -> Scored:
    """Label and confidence from the plain image, the gradient from a strong view; modules are in eval mode here."""
    found = predictor.predict(x)
    selected = found.calibrated >= threshold
    scores = torch.zeros(len(x))
    if selected.any():
        strong = predictor.views("strong", torch.from_numpy(x).to(predictor.device))[selected.to(predictor.device)]
        logits, features = predictor.model(strong)
        labels, ones = found.labels[selected].to(logits.device), torch.ones(len(strong), device=logits.device)
        assert predictor.direction is not None
        influence = score_chunk(predictor.direction, features.float(), logits.float().softmax(1), labels, ones)
        scores[selected] = selector.value(influence).cpu()
    return Scored(ids, scores.numpy(), selected.numpy(), found.calibrated.numpy(), found.labels.numpy())


class Spill:
    """Scored rows on disk, read back in blocks and as often as needed.

    Ranking them as they come would hold small arrays between the large ones of the network, which breaks up the heap.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.count, self.selected = file, 0, 0

    def add(self, chunk: Scored) -> None:
        """Write down some rows."""
        rows = np.empty(len(chunk.ids), ROW)
        for name, column in zip(ROW.names or (), chunk, strict=True):
            rows[name] = column
        self.file.write(rows.tobytes())
        self.count, self.selected = self.count + len(rows), self.selected + int(chunk.selected.sum())

    def __iter__(self) -> Iterator[Scored]:
        self.file.seek(0)
        while data := self.file.read(65_536 * ROW.itemsize):
            rows = np.frombuffer(data, ROW)
            yield Scored(*(rows[name] for name in ROW.names or ()))


def write_rows(table: Iterable[Scored], kept: np.ndarray, names: Names, classes: Sequence[str], handle: TextIO) -> None:
    """path, score (higher is kept earlier; 0 below the threshold), label, confidence, kept."""
    writer = csv.writer(handle)
    writer.writerow(["path", "score", "label", "confidence", "kept"])
    for chunk in table:
        columns = zip(*(column.tolist() for column in chunk), strict=True)
        for place, score, _, confidence, label in columns:
            row = (names[place], f"{score:.9g}", classes[label], f"{confidence:.9g}", int(kept[place]))
            writer.writerow(row)
