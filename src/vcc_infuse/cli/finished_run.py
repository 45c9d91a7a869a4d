"""What several commands do with a finished run and with their output."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from ..data.dataset import Dataset, Examples
from ..data.images.store import Limits
from ..data.ssl_data import keep_validation, load
from ..errors import UserError
from ..inference.predictor import Predictor
from ..runs.fingerprint import changed_options, find_rows, options_of, overlap, refuse, same_rows
from ..runs.folder import RunFolder
from ..utils.io import read_yaml, write_atomic
from ..utils.manifest import NAME, check_links, listed
from .parser import Parser


def image_predictor(run: str, device: str, trust_code: bool) -> Predictor:
    """The classifier of a run that was trained on images."""
    predictor = Predictor.load(run, device, trust_code)
    if len(predictor.shape) != 3:
        raise UserError(f"{run} was trained on feature vectors, not on images; use Predictor in Python")
    return predictor


def load_like(
    predictor: Predictor, run: str, data: str | None, root: str | None = None, cache: str | None = None,
    label_file: str | None = None, limits: Limits | None = None,
) -> Dataset:  # fmt: skip
    """A dataset with examples of the shape the model was trained on; the data of the run itself if none is named.

    Other data without a test set are measured on all their labels.
    """
    config = config_of(run, data)
    source = data or str(config.get("data", ""))
    if not source or source == "arrays":
        raise UserError(f"{run} was trained on arrays; choose what to measure on with --data")
    height, width, channels = predictor.shape if len(predictor.shape) == 3 else (0, 0, 0)
    mode = config.get("mode") or {1: "gray", 3: "rgb"}.get(channels, "auto")
    size = config.get("size", height if height == width else None)
    root = root or config.get("root")
    own = str(config.get("cache") or "")  # nothing is created where somebody's configuration says
    table, cache = label_file or config.get("label_file"), cache or (own if Path(own).is_dir() and own else None)
    dataset = load(
        source, root=root, size=size, mode=mode, cache=cache, progress=True, label_file=table,
        intensity=config.get("intensity", "auto"), limits=limits,
    )  # fmt: skip
    if dataset.test is not None:
        return dataset
    if not config:
        return labels_as_test(dataset)
    share = config.get("validation", "none")
    return dataset if share == "none" else keep_validation(dataset, share)


def labels_as_test(dataset: Dataset) -> Dataset:
    """The dataset with its labeled training examples as test set."""
    known = np.flatnonzero(dataset.train.y >= 0)
    return replace(dataset, test=Examples(dataset.train.x[known], dataset.train.y[known]))


def own_config(run: str | Path) -> dict[str, Any]:
    """The config.yaml in a run folder, which somebody else may have filled."""
    check_links(Path(run), ["config.yaml"])
    return read_yaml(Path(run) / "config.yaml")


def config_of(run: str, data: str | None) -> dict[str, Any]:
    """The options of the run, if `data` is not given or the run's own."""
    there = data is None or (Path(run) / "config.yaml").is_file()
    config = own_config(run) if there else {}
    return config if data in (None, config.get("data")) else {}


def check_config(predictor: Predictor, run: str, force: bool) -> None:
    """Refuse a config.yaml that is no longer the one the model was trained by; `force` only says what differs."""
    path = Path(run) / "config.yaml"
    if predictor.fingerprint is None or not path.is_file():
        return
    now = options_of(own_config(run))
    said = refuse(changed_options(predictor.fingerprint["config"], now), path, force, "put it back, or add --force")
    if said:
        print(said, file=sys.stderr)


def measured_on(dataset: Dataset, predictor: Predictor, run: str, own: bool, force: bool) -> Examples:
    """The test examples: those that the run held out if they are its `own` data, however the folder has changed since.

    Images that the run was trained on are refused, unless `force` is set.
    """
    rows = RunFolder(run).rows()
    if own and rows is not None and "test" in rows:
        if dataset.test is not None and dataset.classes == predictor.classes and same_rows(dataset.test, rows):
            return dataset.test
        return _held_out(*find_rows(dataset, rows, predictor.classes), run, force)
    examples = match_classes(dataset, predictor.classes)
    seen = 0 if rows is None else overlap(examples, rows)
    if seen and not force:
        known = f"{seen} of the {len(examples)} images to measure on are training images of {run}"
        raise UserError(f"{known}; give others, or add --force")
    return examples


def _held_out(kept: Examples, missing: int, run: str, force: bool) -> Examples:
    """The test images of a run in a folder that has changed."""
    if missing and not (force and len(kept)):
        rest = f", or measure on the other {len(kept)} with --force" if len(kept) else ""
        lost = f"{missing} of the {missing + len(kept)} test images of {run} are gone, changed or have another label"
        raise UserError(f"{lost}; put them back{rest}")
    print(f"the data have changed since training: measured on {len(kept)} test images of the run", file=sys.stderr)
    return kept


def match_classes(dataset: Dataset, classes: tuple[str, ...]) -> Examples:
    """The test examples with the class numbers of the run; classes are matched by name."""
    unknown = [name for name in dataset.classes if name not in classes]
    if unknown:
        raise UserError(f"--data has a class {unknown[0]!r} that the run does not have; it has {', '.join(classes)}")
    if dataset.test is None:
        raise UserError("--data has no test set; give data that has one, such as a folder test/<class>")
    number = np.array([classes.index(name) for name in dataset.classes])
    return Examples(dataset.test.x, number[dataset.test.y], dataset.test.names)


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
    if any(os.path.samefile(path, name) for name in (*inputs, *_files_of(run)) if os.path.exists(name)):
        raise UserError(f"-o {path} is read by this command; give another name")
    if not overwrite:
        raise UserError(f"-o {path} exists already; give another name, or add --overwrite")


def _files_of(run: str | None) -> list[str]:
    """What a run needs; its report and exported models can be made again."""
    folder = Path(run or "")
    return [str(folder / name) for name in (*listed(folder), NAME)] if run else []


def write_output(output: str, write: Callable[[TextIO], None]) -> None:
    """Write to the screen (`-`), or to a file that appears only when it is complete."""
    if output == "-":
        write(sys.stdout)
        return

    def fill(path: Path) -> None:
        with open(path, "w", encoding="utf-8", newline="", errors="surrogateescape") as handle:
            write(handle)

    write_atomic(Path(output), fill)
