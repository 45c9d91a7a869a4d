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
from ..inference.predictor import Prediction
from ..utils.io import table_cell
from .finished_run import add_common, check_output, image_predictor, run_parser, write_output
from .parser import integer, limits_of, number, one_of


def run(argv: Sequence[str]) -> int:
    """Write label, confidences and class probabilities of each image; the status is 1 if none can be read."""
    parser = run_parser("predict", "Label images with a trained run.")
    parser.add_argument("images", metavar="IMAGES", nargs="+", help="folders, zips, images, or patterns ('*.png')")
    parser.add_argument("--format", **one_of("csv", "jsonl"), help="format, if the name of the file does not show it")
    parser.add_argument("--abstain", type=number(0, 1), default=0.0, metavar="CONFIDENCE",
                        help="leave the label empty where the calibrated confidence is lower")  # fmt: skip
    parser.add_argument("--batch_size", type=integer(), default=64, help="images per forward (64)")
    add_common(parser, "file to write, .csv or .jsonl; - is the screen", "-")
    options = parser.read(argv)
    kind = options.format or ("jsonl" if options.output.endswith((".jsonl", ".ndjson")) else "csv")
    paths = [path for pattern in options.images for path in expand(pattern)]
    check_output(options.output, options.overwrite, options.run, paths)
    predictor = image_predictor(options)
    source = paths if len(paths) > 1 else paths[0]  # images of a single folder or zip are named by their path below it
    tally = Tally()
    rows = tally.readable(predictor.stream(source, options.batch_size, options.abstain, limits_of(options)))
    first = next(rows, None)
    if first is not None:
        write_output(options.output, lambda handle: write_rows(chain([first], rows), predictor.classes, kind, handle))
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
        self.count = 0
        self.abstained = 0
        self.skipped = SkippedImages()

    def readable(self, rows: Iterator[Prediction]) -> Iterator[Prediction]:
        """The images that can be read, with a progress bar on a terminal."""
        with tqdm(unit="image", disable=not sys.stderr.isatty(), dynamic_ncols=True) as bar:
            for row in rows:
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


def write_rows(rows: Iterator[Prediction], classes: Sequence[str], kind: str, handle: TextIO) -> None:
    """Write file, label (empty or null where it is left out), both confidences and the probability of each class."""
    names = ("file", "label", "confidence", "confidence_calibrated")
    table = csv.writer(handle)
    if kind == "csv":
        table.writerow([*names, *(table_cell(f"p_{name}") for name in classes)])
    for row in rows:
        if kind == "csv":
            numbers = (row.confidence, row.calibrated, *row.probs)
            table.writerow([table_cell(row.name), table_cell(row.label or ""), *(f"{value:.6f}" for value in numbers)])
        else:
            values = (row.name, row.label, row.confidence, row.calibrated, dict(zip(classes, row.probs, strict=True)))
            line = dict(zip((*names, "probabilities"), values, strict=True))
            handle.write(json.dumps(line, ensure_ascii=False) + "\n")
