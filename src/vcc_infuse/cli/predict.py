"""`vcc-infuse predict RUN IMAGES`: label images one chunk at a time; memory does not grow with their number."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

import numpy as np

from ..data.image_stream import SkippedImages, image_chunks, open_images
from ..data.images.file_store import Store
from ..predictor import Predictor
from .parsing import Parser, one_of
from .shared import image_predictor, write_output

CHUNK = 1024


def run(argv: Sequence[str]) -> None:
    """Write label, confidences and class probabilities of each image, as CSV or JSON lines."""
    parser = Parser("vcc-infuse predict", "Label images with a trained run.")
    parser.add_argument("run", metavar="RUN", help="folder of a finished run")
    parser.add_argument("images", metavar="IMAGES", help="a folder, a zip, or a single image")
    parser.add_argument("-o", "--output", default="-", help="file to write, .csv or .jsonl; - is the screen")
    parser.add_argument("--format", **one_of("csv", "jsonl"), help="format, if the name of the file does not show it")
    options = parser.read(argv)
    kind = options.format or ("jsonl" if options.output.endswith((".jsonl", ".ndjson")) else "csv")
    writer = write_csv if kind == "csv" else write_jsonl
    predictor, skipped = image_predictor(options.run), SkippedImages()
    with open_images(options.images) as store:
        found = label(predictor, store, skipped)
        write_output(options.output, lambda handle: writer(found, predictor.classes, handle))
    skipped.report()


def label(predictor: Predictor, store: Store, skipped: SkippedImages) -> Iterator[dict[str, Any]]:
    """One row per readable image; the others go to `skipped`."""
    for chunk in image_chunks(store, predictor.shape, skipped, CHUNK):
        if len(chunk.x):
            yield from rows(predictor, chunk.x, [chunk.names[row] for row in chunk.rows])


def rows(predictor: Predictor, x: np.ndarray, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Predictions as dicts."""
    columns = (column.tolist() for column in predictor.predict(x))
    for name, chosen, probs, confidence, calibrated in zip(names, *columns, strict=True):
        yield {
            "file": name,
            "label": predictor.classes[chosen],
            "confidence": confidence,
            "confidence_calibrated": calibrated,
            "probabilities": dict(zip(predictor.classes, probs, strict=True)),
        }


def write_csv(found: Iterator[dict[str, Any]], classes: Sequence[str], handle: TextIO) -> None:
    """The columns file, label, confidence, confidence_calibrated, then one per class."""
    table = csv.writer(handle)
    table.writerow(["file", "label", "confidence", "confidence_calibrated", *(f"p_{name}" for name in classes)])
    for row in found:
        numbers = [row["confidence"], row["confidence_calibrated"], *row["probabilities"].values()]
        table.writerow([row["file"], row["label"], *(f"{value:.6f}" for value in numbers)])


def write_jsonl(found: Iterator[dict[str, Any]], classes: Sequence[str], handle: TextIO) -> None:
    """One JSON object per line."""
    for row in found:
        handle.write(json.dumps(row, ensure_ascii=False) + "\n")
