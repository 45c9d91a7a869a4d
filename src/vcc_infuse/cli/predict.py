"""`vcc-infuse predict RUN IMAGES …`: label images one batch at a time; memory does not grow with their number."""

from __future__ import annotations

import csv
import glob
import json
import os
import sys
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TextIO

from tqdm.auto import tqdm

from ..data.images.decode import SkippedImages
from ..errors import UserError
from ..inference.predictor import Prediction, Predictor
from ..utils.io import table_cell
from .finished_run import add_output, check_output, image_predictor, write_output
from .parser import Parser, add_device, add_limits, integer, limits_of, number, one_of
from .trust import add_trust


def run(argv: Sequence[str]) -> int:
    """Write label, confidences and class probabilities of each image; the status is 1 if none can be read."""
    parser = Parser("vcc-infuse predict", "Label images with a trained run.")
    parser.add_argument("run", metavar="RUN", help="folder of a finished run")
    parser.add_argument(
        "images", metavar="IMAGES", nargs="+", help="folders, zips, images, or patterns such as '*.png'"
    )
    add_output(parser, "file to write, .csv or .jsonl; - is the screen", "-")
    parser.add_argument("--format", **one_of("csv", "jsonl"), help="format, if the name of the file does not show it")
    parser.add_argument("--abstain", type=number(0, 1), default=0.0, metavar="CONFIDENCE",
                        help="leave the label empty where the calibrated confidence is lower")  # fmt: skip
    parser.add_argument("--batch_size", type=integer(), default=64, help="images per forward (64)")
    add_device(parser)
    add_limits(parser)
    add_trust(parser)
    options = parser.read(argv)
    kind = options.format or ("jsonl" if options.output.endswith((".jsonl", ".ndjson")) else "csv")
    writer = write_csv if kind == "csv" else write_jsonl
    paths = [path for pattern in options.images for path in expand(pattern)]
    check_output(options.output, options.overwrite, options.run, paths)
    predictor, tally = image_predictor(options.run, options.device, options.trust_code), Tally()
    # A single folder or zip: its images are named by their path below it.
    found = predictor.stream(
        paths if len(paths) > 1 else paths[0], options.batch_size, options.abstain, limits_of(options)
    )
    rows = tally.readable(found)
    first = next(rows, None)
    if first is not None:
        every = chain([first], rows)
        write_output(options.output, lambda handle: writer(every, predictor, handle))
    return tally.report(options.abstain)


def expand(pattern: str) -> list[str]:
    """The paths that a pattern stands for, where the shell has not expanded it."""
    if os.path.exists(pattern) or not glob.has_magic(pattern):
        return [pattern]
    if not (paths := sorted(glob.glob(pattern, recursive=True))):
        raise UserError(f"{pattern} matches no file; check the pattern")
    return paths


class Tally:
    """What became of the images: labeled, without a label, or skipped."""

    def __init__(self) -> None:
        self.count, self.abstained, self.skipped = 0, 0, SkippedImages()

    def readable(self, found: Iterator[Prediction]) -> Iterator[Prediction]:
        """The images that can be read, with a progress bar on a terminal."""
        with tqdm(unit="image", disable=not sys.stderr.isatty(), dynamic_ncols=True) as bar:
            for row in found:
                bar.update()
                if row.error:
                    self.skipped.add([row.name], {0: row.error})
                    continue
                self.count += 1
                self.abstained += row.label is None
                yield row

    def report(self, abstain: float) -> int:
        """Say on stderr what has no label; returns the exit status."""
        self.skipped.report()
        if not self.count:
            print(f"vcc-infuse: none of the {self.skipped.count} images can be read", file=sys.stderr)
        elif abstain:
            print(f"{self.abstained} of {self.count} images are below {abstain:g} and have no label", file=sys.stderr)
        return 0 if self.count else 1


def write_csv(found: Iterator[Prediction], predictor: Predictor, handle: TextIO) -> None:
    """The columns file, label, confidence, confidence_calibrated, then one per class."""
    table, columns = csv.writer(handle), (table_cell(f"p_{name}") for name in predictor.classes)
    table.writerow(["file", "label", "confidence", "confidence_calibrated", *columns])
    for row in found:
        numbers = (row.confidence, row.calibrated, *row.probs)
        table.writerow([table_cell(row.name), table_cell(row.label or ""), *(f"{value:.6f}" for value in numbers)])


def write_jsonl(found: Iterator[Prediction], predictor: Predictor, handle: TextIO) -> None:
    """One JSON object per line; a label that is left out is null."""
    for row in found:
        line = {
            "file": row.name,
            "label": row.label,
            "confidence": row.confidence,
            "confidence_calibrated": row.calibrated,
            "probabilities": dict(zip(predictor.classes, row.probs, strict=True)),
        }
        handle.write(json.dumps(line, ensure_ascii=False) + "\n")
