"""`vcc-infuse predict RUN IMAGES`: label images, a line each, in memory that does not grow with the folder."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from ..data.image_stream import SkippedImages, image_chunks, open_images
from ..data.images.file_store import Store
from ..errors import UserError
from ..predictor import Predictor
from ..utils.io import write_atomic
from .parsing import Parser

CHUNK = 1024


def run(argv: Sequence[str]) -> None:
    """Write label, confidences and per-class probabilities of each image as CSV or JSON lines."""
    parser = Parser(prog="vcc-infuse predict", description="Label images with a trained run.")
    parser.add_argument("run", help="folder of a finished run")
    parser.add_argument("images", help="a folder, a zip, or a single image")
    parser.add_argument("-o", "--output", default="-", help="file to write, .csv or .jsonl; - is the screen")
    parser.add_argument("--format", choices=("csv", "jsonl"), help="if the name does not tell")
    options = parser.read(argv)
    kind = options.format or ("jsonl" if options.output.endswith((".jsonl", ".ndjson")) else "csv")
    predictor = image_predictor(options.run)
    with open_images(options.images) as store:
        broken = SkippedImages()
        write(label(predictor, store, broken), predictor.classes, kind, options.output)
    broken.report()


def image_predictor(run: str) -> Predictor:
    """The model of a run, if it was trained on images."""
    predictor = Predictor.load(run)
    if len(predictor.shape) != 3:
        raise UserError(f"{run} was trained on feature vectors, not on images; use Predictor in Python")
    return predictor


def label(predictor: Predictor, store: Store, broken: SkippedImages) -> Iterator[dict[str, Any]]:
    """A row an image; unreadable ones go to `broken`."""
    for chunk in image_chunks(store, predictor.shape, broken, CHUNK):
        if len(chunk.x):
            yield from rows(predictor, chunk.x, [chunk.names[row] for row in chunk.rows])


def rows(predictor: Predictor, x: np.ndarray, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Predictions as dicts."""
    found = predictor.predict(x)
    for name, chosen, probs, confidence, calibrated in zip(names, *_lists(found), strict=True):
        yield {
            "file": name,
            "label": predictor.classes[chosen],
            "confidence": confidence,
            "confidence_calibrated": calibrated,
            "probabilities": dict(zip(predictor.classes, probs, strict=True)),
        }


def _lists(found: Any) -> list[list[Any]]:
    return [column.tolist() for column in found]


def write(found: Iterator[dict[str, Any]], classes: Sequence[str], kind: str, output: str) -> None:
    """A table of predictions, as CSV or JSON lines."""
    writer = write_csv if kind == "csv" else write_jsonl
    write_text(output, lambda handle: writer(found, classes, handle))


def write_text(output: str, write: Callable[[TextIO], None]) -> None:
    """To the screen, or to a file that appears only when complete."""
    if output == "-":
        write(sys.stdout)
        return

    def fill(path: Path) -> None:
        with open(path, "w", encoding="utf-8", newline="", errors="surrogateescape") as handle:
            write(handle)

    write_atomic(Path(output), fill)


def write_csv(found: Iterator[dict[str, Any]], classes: Sequence[str], handle: TextIO) -> None:
    """file, label, confidence, confidence_calibrated, then a column a class."""
    table = csv.writer(handle)
    table.writerow(["file", "label", "confidence", "confidence_calibrated", *(f"p_{name}" for name in classes)])
    for row in found:
        numbers = [row["confidence"], row["confidence_calibrated"], *row["probabilities"].values()]
        table.writerow([row["file"], row["label"], *(f"{value:.6f}" for value in numbers)])


def write_jsonl(found: Iterator[dict[str, Any]], classes: Sequence[str], handle: TextIO) -> None:
    """One JSON object a line."""
    for row in found:
        handle.write(json.dumps(row, ensure_ascii=False) + "\n")
