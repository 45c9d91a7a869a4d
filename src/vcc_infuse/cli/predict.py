"""`vcc-infuse predict RUN IMAGES …`: label images one batch at a time; memory does not grow with their number."""

from __future__ import annotations

import csv
import glob
import json
import os
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, TextIO

from tqdm.auto import tqdm

from ..bank.shards import Shards
from ..data.images.decode import SkippedImages
from ..errors import UserError
from ..inference.predictor import Prediction, Predictor
from ..inference.shards import predict_shards
from ..utils.io import reading, table_cell
from .findings import at_cut, measured_on, suggested
from .finished_run import add_common, check_output, image_predictor, run_parser, write_output
from .parser import integer, limits_of, number, one_of

FEW = 0.5  # of the images: with fewer answers the run's own cut is mentioned


def run(argv: Sequence[str]) -> int:
    """Write label, confidences and class probabilities of each image; the status is 1 if none can be read."""
    parser = run_parser("predict", "Label images with a trained run.")
    parser.add_argument("images", metavar="IMAGES", nargs="*", help="folders, zips, images, or patterns ('*.png')")
    parser.add_argument("--shards", metavar="BANK", help="folder of `embed --shards`, in place of IMAGES")
    parser.add_argument("--format", **one_of("csv", "jsonl"), help="format, if the name of the file does not show it")
    parser.add_argument("--abstain", type=number(0, 1), default=0.0, metavar="CONFIDENCE",
                        help="no label, only a best_label, where the calibrated confidence is lower")  # fmt: skip
    parser.add_argument("--unknown", type=number(0, 1), default=0.0, metavar="P",
                        help="no label, only a best_label, where unknown_p is at most P")  # fmt: skip
    parser.add_argument("--batch_size", type=integer(), default=64, help="images per forward (64)")
    add_common(parser, "file to write, .csv or .jsonl; - is the screen", "-")
    options = parser.read(argv)
    kind = options.format or ("jsonl" if options.output.endswith((".jsonl", ".ndjson")) else "csv")
    if bool(options.images) == bool(options.shards):
        raise UserError("predict needs IMAGES (folders, zips, images) or --shards with a folder of shards, one of them")
    paths = [path for pattern in options.images for path in expand(pattern)]
    check_output(options.output, options.overwrite, options.run, paths)
    predictor = image_predictor(options)
    tally = Tally(options.unknown)
    rows = tally.readable(answers(predictor, paths, options))
    first = next(rows, None)
    if first is not None:
        judged = predictor.known is not None
        write_output(
            options.output,
            lambda handle: write_rows(chain([first], rows), predictor.classes, kind, handle, judged=judged),
        )
    with reading(f"{options.run}/summary.json"):
        return tally.report(options.abstain, predictor.summary or {})


def answers(predictor: Predictor, paths: Sequence[str], options: Namespace) -> Iterator[Prediction]:
    """What the run says of the images, or of the rows of a sharded bank."""
    cuts = {"abstain": options.abstain, "unknown": options.unknown}
    if options.shards:
        return predict_shards(predictor, Shards(options.shards), **cuts)
    source = list(paths) if len(paths) > 1 else paths[0]  # of a single folder or zip, names are paths below it
    return predictor.stream(source, options.batch_size, limits=limits_of(options), **cuts)


def expand(pattern: str) -> list[str]:
    """The paths that a pattern stands for, where the shell has not expanded it."""
    if os.path.exists(pattern) or not glob.has_magic(pattern):
        return [pattern]
    if not (paths := sorted(glob.glob(pattern, recursive=True))):
        raise UserError(f"{pattern} matches no file; check the pattern")
    return paths


class Tally:
    """What became of the images: labeled, without a label, or skipped."""

    def __init__(self, unknown: float = 0.0) -> None:
        self.unknown = unknown
        self.count = 0
        self.foreign = 0
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
                foreign = row.unknown_p <= self.unknown
                self.foreign += foreign
                self.abstained += row.label is None and not foreign
                yield row

    def report(self, abstain: float, summary: dict[str, Any]) -> int:
        """Say on stderr what has no label; returns the exit status. `summary` is that of the run."""
        self.skipped.report()
        if not self.count:
            print(f"vcc-infuse: none of the {self.skipped.count} images can be read", file=sys.stderr)
            return 1
        if self.unknown:
            left_out = f"--unknown {self.unknown:g} leaves out {self.foreign} of {self.count} images"
            print(f"{left_out} that resemble no labeled one", file=sys.stderr)
        if abstain:
            answered = self.count - self.abstained - self.foreign
            others = "; the others have a best_label only" if answered < self.count else ""
            hint = better_cut(summary, abstain, answered / self.count)
            print(f"--abstain {abstain:g} answers {answered} of {self.count} images{others}{hint}", file=sys.stderr)
        return 0


def better_cut(summary: dict[str, Any], abstain: float, share: float) -> str:
    """The cut that the run suggests, if `abstain` is higher and answers only a small `share` of the images."""
    if share >= FEW:
        return ""
    if not summary.get("abstain"):
        return "; the run has no measured cut to suggest: `vcc-infuse evaluate` on labeled images gives one"
    lower = [cut for cut in suggested(summary) if cut["cut"] < abstain]
    return "".join(f"; the run suggests {cut['cut']:g}: {at_cut(cut, measured_on(summary))}" for cut in lower)


def write_rows(
    rows: Iterator[Prediction], classes: Sequence[str], kind: str, handle: TextIO, *, judged: bool = False
) -> None:
    """Write file, answer (empty or null where it abstains), likeliest class, confidences and class probabilities.

    Where the run knows its labeled images, so that a row is `judged`, also how foreign it is.
    """
    words = ("file", "label", "best_label")
    numbers = ("confidence", "confidence_calibrated", *(("unknown", "unknown_p") if judged else ()))
    table = csv.writer(handle)
    if kind == "csv":
        table.writerow([*words, *numbers, *(table_cell(f"p_{name}") for name in classes)])
    for row in rows:
        values = (row.confidence, row.calibrated, row.unknown, row.unknown_p)[: len(numbers)]
        if kind == "csv":
            texts = (row.name, row.label or "", row.best_label or "")
            table.writerow([*map(table_cell, texts), *(f"{value:.6f}" for value in (*values, *row.probs))])
        else:
            answers = dict(zip((*words, *numbers), (row.name, row.label, row.best_label, *values), strict=True))
            line = {**answers, "probabilities": dict(zip(classes, row.probs, strict=True))}
            handle.write(json.dumps(line, ensure_ascii=False) + "\n")
