"""What several commands do with a finished run and with their output."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from ..data.dataset import Dataset, Examples
from ..data.ssl_data import keep_validation, load
from ..errors import UserError
from ..inference.predictor import Predictor
from ..runs.fingerprint import changed_options, find_rows, options_of, overlap, refuse, same_rows
from ..runs.folder import RunFolder
from ..utils.io import read_yaml, write_atomic
from ..utils.manifest import NAME, check_links, listed
from .parser import Parser, add_device, add_limits, integer, limits_of


def run_parser(name: str, about: str) -> Parser:
    """A parser of a command that uses a finished run."""
    parser = Parser(f"vcc-infuse {name}", about)
    parser.add_argument("run", metavar="RUN", help="folder of a finished run")
    return parser


def add_common(parser: Parser, output: str, default: str | None = None, *, images: bool = True) -> None:
    """Add the options that all these commands have; `output` describes `-o`."""
    add_device(parser)
    if images:
        add_limits(parser)
    parser.add_argument("--trust-code", action="store_true", help="import classes of other packages that RUN names")
    add_output(parser, output, default)


def add_measured(parser: Parser, **data: Any) -> None:
    """Add the options of commands that measure a run on labeled images; `data` are those of `--data`."""
    parser.add_argument("--data", **data)
    parser.add_argument("--label_file", help="table with the labels of the images in --data")
    parser.add_argument("--root", help="folder with the files of a named source")
    parser.add_argument("--cache", help="folder for decoded images")
    parser.add_argument("--bins", type=integer(), default=15, help="bins of the calibration metrics (15)")
    parser.add_argument("--force", action="store_true", help="measure although data or config.yaml have changed")


def image_predictor(options: Namespace) -> Predictor:
    """The classifier of a run that was trained on images."""
    predictor = Predictor.load(options.run, options.device, options.trust_code, engine=options.engine)
    if len(predictor.shape) != 3:
        raise UserError(f"{options.run} was trained on feature vectors, not on images; use Predictor in Python")
    return predictor


def labeled_images(predictor: Predictor, options: Namespace, split: str = "test") -> tuple[Dataset, Examples]:
    """The data that --data names, and those of its examples to measure the run on."""
    config = config_of(options.run, options.data)
    if config and split == "train":
        # A model is too confident on the images it was trained on, so they cannot show how to calibrate it.
        problem = f"--split train: the run was trained on these images of {options.data}"
        raise UserError(f"{problem}; give --split test or other data")
    path = Path(options.run) / "config.yaml"
    if predictor.fingerprint is not None and path.is_file():  # is it still the one the model was trained by?
        changes = changed_options(predictor.fingerprint["config"], options_of(own_config(options.run)))
        if warning := refuse(changes, path, options.force, "put it back, or add --force"):
            print(warning, file=sys.stderr)
    dataset = load_like(predictor, options, config)
    dataset = dataset if split == "test" else labels_as_test(dataset)
    return dataset, measured_on(dataset, predictor, options, own=bool(config))


def load_like(predictor: Predictor, options: Namespace, config: dict[str, Any]) -> Dataset:
    """A dataset with examples of the shape the model was trained on; those that `config` says if none are named.

    Other data without a test set are measured on all their labels.
    """
    source = options.data or str(config.get("data", ""))
    if not source or source == "arrays":
        raise UserError(f"{options.run} was trained on arrays; choose what to measure on with --data")
    height, width, channels = predictor.shape if len(predictor.shape) == 3 else (0, 0, 0)
    folder = str(config.get("cache") or "")  # nothing is created where somebody's configuration says
    dataset = load(
        source,
        root=options.root or config.get("root"),
        size=config.get("size", height if height == width else None),
        mode=config.get("mode") or {1: "gray", 3: "rgb"}.get(channels, "auto"),
        cache=options.cache or (folder if folder and Path(folder).is_dir() else None),
        progress=True,
        label_file=options.label_file or config.get("label_file"),
        intensity=config.get("intensity", "auto"),
        limits=limits_of(options),
        group_by=config.get("group_by", "none"),
    )
    if dataset.test is None and not config:
        return labels_as_test(dataset)
    share = config.get("validation", "none")
    return dataset if dataset.test is not None or share == "none" else keep_validation(dataset, share)


def measured_on(dataset: Dataset, predictor: Predictor, options: Namespace, *, own: bool) -> Examples:
    """The test examples: those that the run held out if they are its `own` data, however the folder has changed since.

    Images that the run was trained on are refused without --force.
    """
    rows = RunFolder(options.run).rows()
    classes = predictor.classes
    if own and rows is not None and "test" in rows:
        if dataset.test is not None and dataset.classes == classes and same_rows(dataset.test, rows):
            return dataset.test
        kept, missing = find_rows(dataset, rows, classes)
        if missing and not (options.force and len(kept)):
            rest = f", or measure on the other {len(kept)} with --force" if len(kept) else ""
            lost = f"{missing} of the {missing + len(kept)} test images of {options.run} are gone"
            raise UserError(f"{lost}, changed or have another label; put them back{rest}")
        print(f"the data have changed since training: measured on {len(kept)} test images of the run", file=sys.stderr)
        return kept
    if unknown := [name for name in dataset.classes if name not in classes]:
        raise UserError(f"--data has a class {unknown[0]!r} that the run does not have; it has {', '.join(classes)}")
    if dataset.test is None:
        raise UserError("--data has no test set; give data that has one, such as a folder test/<class>")
    number = np.array([classes.index(name) for name in dataset.classes])
    examples = Examples(dataset.test.x, number[dataset.test.y], dataset.test.names)
    seen = 0 if rows is None else overlap(examples, rows)
    if seen and not options.force:
        known = f"{seen} of the {len(examples)} images to measure on are training images of {options.run}"
        raise UserError(f"{known}; give others, or add --force")
    return examples


def labels_as_test(dataset: Dataset) -> Dataset:
    """The dataset with its labeled training examples as test set."""
    known = np.flatnonzero(dataset.train.y >= 0)
    return replace(dataset, test=Examples(dataset.train.x[known], dataset.train.y[known]))


def own_config(run: str) -> dict[str, Any]:
    """The config.yaml in a run folder, which somebody else may have filled."""
    check_links(Path(run), ["config.yaml"])
    return read_yaml(Path(run) / "config.yaml")


def config_of(run: str, data: str | None) -> dict[str, Any]:
    """The options of the run, if `data` is not given or the run's own."""
    config = own_config(run) if data is None or (Path(run) / "config.yaml").is_file() else {}
    return config if data in (None, config.get("data")) else {}


def add_output(parser: Parser, text: str, default: str | None = None) -> None:
    """Add `-o` and `--overwrite`."""
    parser.add_argument("-o", "--output", default=default, help=text)
    parser.add_argument("--overwrite", action="store_true", help="replace the output if it exists")


def check_output(output: str | None, overwrite: bool, run: str | None = None, inputs: Sequence[str] = ()) -> None:
    """Refuse to replace a file without being asked, and in any case what the command reads."""
    path = Path(output or "-")
    if str(path) == "-":
        return
    if not path.parent.is_dir():
        raise UserError(f"-o {path}: there is no folder {path.parent}; create it first")
    if path.is_dir():
        raise UserError(f"-o {path} is a folder; give the name of a file")
    if not os.path.lexists(path):
        return
    # A run needs these; its report and exported models can be made again.
    needed = [str(Path(run) / name) for name in (*listed(Path(run)), NAME)] if run else []
    if any(os.path.samefile(path, name) for name in (*inputs, *needed) if os.path.exists(name)):
        raise UserError(f"-o {path} is read by this command; give another name")
    if not overwrite:
        raise UserError(f"-o {path} exists already; give another name, or add --overwrite")


def write_output(output: str, write: Callable[[TextIO], None]) -> None:
    """Write to the screen (`-`), or to a file that appears only when it is complete."""
    if output == "-":
        return write(sys.stdout)

    def fill(path: Path) -> None:
        with open(path, "w", encoding="utf-8", newline="", errors="surrogateescape") as handle:
            write(handle)

    write_atomic(Path(output), fill)
