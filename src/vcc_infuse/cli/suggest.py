"""`vcc-infuse suggest RUN` or `suggest --data IMAGES`: which images to label next, with reasons."""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from typing import TextIO

from ..audit import NextLabel, suggest_from_images, suggest_from_run, suggest_from_shards
from ..errors import UserError
from ..models import Timm
from ..utils.io import table_cell
from .audit import add_source, source_of
from .finished_run import add_output, check_output, write_output
from .parser import Parser, add_limits, integer, limits_of

ABOUT = """Suggest images to label next. With --data alone nothing has to be labeled or trained: a pretrained network
embeds the images, and typical ones of the largest groups come first. With RUN, a run of the preset frozen, its pool is
searched; from about four labels per class on, for images between two classes."""


def run(argv: Sequence[str]) -> None:
    """Write file, reason, score and nearest class, the most useful image first."""
    parser = Parser("vcc-infuse suggest", ABOUT)
    parser.add_argument("run", metavar="RUN", nargs="?", help="folder of a finished run; or give --data")
    parser.add_argument("-n", "--count", type=integer(), default=20, help="images to suggest (20)")
    add_source(parser)
    add_limits(parser)
    parser.add_argument("--model.name", default="tf_efficientnet_lite0", help="without RUN: a network of timm")
    parser.add_argument("--model.weights", default="auto", metavar="WEIGHTS", help="without RUN: as for `embed` (auto)")
    parser.add_argument("--model.input_size", type=integer(), metavar="SIDE", help="without RUN: side of its images")
    add_output(parser, "CSV file to write; - is the screen", "-")
    options = parser.read(argv)
    if options.run is None and (options.data is None) == (options.shards is None):
        raise UserError("suggest needs images: give RUN, the folder of a finished run, or one of --data and --shards")
    check_output(options.output, options.overwrite, options.run, [options.data] if options.data else [])
    if options.run is not None:
        chosen = suggest_from_run(options.run, options.count, source=source_of(options))
    elif options.shards is not None:
        chosen = suggest_from_shards(options.shards, options.count, sample=options.sample)
    else:
        given = vars(options)
        network = Timm(*(given[f"model.{name}"] for name in ("name", "weights", "input_size")))
        chosen = suggest_from_images(
            options.data, options.count, encoder=network, device=options.device, engine=options.engine,
            limits=limits_of(options),
        )  # fmt: skip
    write_output(options.output, lambda handle: write_suggestions(chosen, handle))
    fewer = "; no other is left that is no copy" if len(chosen) < options.count else ""
    images = "1 image" if len(chosen) == 1 else f"{len(chosen):,} images"
    print(f"{images} to label{fewer}", file=sys.stderr if options.output == "-" else sys.stdout)


def write_suggestions(chosen: Sequence[NextLabel], handle: TextIO) -> None:
    """The table as CSV."""
    writer = csv.writer(handle)
    writer.writerow(["file", "reason", "score", "nearest_class"])
    for line in chosen:
        words = (table_cell(line.file), table_cell(line.reason), f"{line.score:.6f}", table_cell(line.nearest_class))
        writer.writerow(words)
