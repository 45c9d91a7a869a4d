"""`vcc-infuse calibrate RUN --data …`: fit a temperature to a finished run, and say honestly what it gains."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import metrics
from ..calibrators import Softmax
from ..calibrators.ensemble_ts import EnsembleTS
from ..calibrators.temperature import TemperatureScaling
from ..data.dataset import Dataset, Examples
from ..errors import UserError
from ..evaluation import infer
from ..predictor import Predictor
from ..utils.io import write_atomic, write_json
from .console import rows
from .parsing import Parser, read_config
from .shared import load_like, match_classes

METHODS: dict[str, type[TemperatureScaling]] = {"TemperatureScaling": TemperatureScaling, "EnsembleTS": EnsembleTS}


def make_parser() -> Parser:
    """The options."""
    about = "Fit a calibrator to a finished run on labeled images it was not trained on."
    parser = Parser(prog="vcc-infuse calibrate", description=about)
    parser.add_argument("run", help="folder of a finished run")
    parser.add_argument("--data", required=True, help="a named source, folder or zip with labeled images")
    parser.add_argument("--split", choices=("test", "train"), default="test", help="which part of the data")
    parser.add_argument("--method", choices=tuple(METHODS), default="TemperatureScaling", help="what to fit")
    parser.add_argument("--root", help="where the files of a named source lie")
    parser.add_argument("--cache", help="where decoded images are kept")
    parser.add_argument("--bins", type=int, default=15, help="bins of the calibration figures")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("-o", "--output", help="new folder for the calibrated run; nothing is written if not given")
    where.add_argument("--in-place", action="store_true", help="replace the calibrator of the run itself")
    return parser


def run(argv: Sequence[str]) -> None:
    """Fit on all, print figures that were cross-fitted, and store the calibrator where asked."""
    options = make_parser().read(argv)
    if options.output and Path(options.output).exists():
        raise UserError(f"-o {options.output} exists already; give another folder, or --in-place to change the run")
    predictor = Predictor.load(options.run)
    refuse_own(Path(options.run), options.data, options.split)
    dataset = load_like(predictor, options.run, options.data, options.root, options.cache)
    if dataset.shape != predictor.shape:
        raise UserError(f"--data {options.data} has examples of shape {dataset.shape}, the run {predictor.shape}")
    examples = match_classes(part_of(dataset, options.split), predictor.classes)
    logits, before = infer(predictor.model, predictor.calibrator, examples.x, predictor.views, predictor.device)
    y = torch.from_numpy(np.asarray(examples.y))
    method = METHODS[options.method]
    figures = compare(method, logits, y, before, isinstance(predictor.calibrator, Softmax), options.bins)
    calibrator = method()
    calibrator.setup(predictor.model, predictor.task)
    predictor.calibrator = calibrator.to(predictor.device).eval().fit(logits, y)
    print(table(figures, calibrator))
    target = options.run if options.in_place else options.output
    store(predictor, figures, Path(options.run), Path(target) if target else None)


def refuse_own(run: Path, data: str, split: str) -> None:
    """Images a network was trained on say nothing of its doubt about others."""
    config = run / "config.yaml"
    if split == "train" and config.is_file() and read_config(str(config)).get("data") == data:
        raise UserError(
            f"--split train: the run was trained on these images of {data}; give --split test or other data"
        )


def part_of(dataset: Dataset, split: str) -> Dataset:
    """The dataset with the labeled examples to fit on as its test part."""
    if split == "test":
        return dataset
    known = np.flatnonzero(dataset.train.y >= 0)
    return replace(dataset, test=Examples(dataset.train.x[known], dataset.train.y[known]))


def halves(y: Tensor) -> list[Tensor]:
    """Two halves of the row numbers, alike in their classes, the same each time."""
    order = torch.from_numpy(np.random.RandomState(0).permutation(len(y)))
    order = order[y[order].argsort(stable=True)]
    return [order[0::2], order[1::2]]


def cross_fit(method: type[TemperatureScaling], logits: Tensor, y: Tensor) -> Tensor:
    """Probabilities of each half by a calibrator that was fitted to the other."""
    if len(y) < 4:
        raise UserError(f"--data has {len(y)} labeled images; give at least 4, better some hundreds")
    probs = torch.empty(logits.shape, dtype=torch.float64)
    one, other = halves(y)
    for fitted, measured in ((one, other), (other, one)):
        probs[measured] = method().fit(logits[fitted], y[fitted]).probs(logits[measured]).double()
    return probs


def compare(
    method: type[TemperatureScaling], logits: Tensor, y: Tensor, own: Tensor, plain: bool, bins: int
) -> dict[str, Any]:
    """NLL and ECE of the softmax and of the calibrator; the ECE of the run's own confidence unless it is `plain`."""
    softmax, fitted = logits.double().softmax(1), cross_fit(method, logits, y)
    correct = softmax.argmax(1) == y
    figures = {"images": len(y), "error": metrics.error(softmax.argmax(1), y)}
    for name, probs in (("softmax", softmax), ("fitted", fitted)):
        figures[f"nll_{name}"] = metrics.nll(probs.clamp_min(1e-300).log(), y)
        figures[f"ece_{name}"] = metrics.ece(probs.amax(1), correct, bins)
    return figures if plain else {**figures, "ece_own": metrics.ece(own, correct, bins)}


def table(figures: dict[str, Any], calibrator: TemperatureScaling) -> str:
    """What it was and what it will be on images like these."""
    pairs = [("images", str(figures["images"])), ("error (unchanged)", f"{100 * figures['error']:.2f} %")]
    pairs += [("temperature", f"{calibrator.temperature.item():.4f}")]
    if isinstance(calibrator, EnsembleTS):
        pairs += [("weights", " ".join(f"{w:.3f}" for w in calibrator.weights.tolist()))]
    names = {"nll": "NLL", "ece": "ECE"}
    for figure, title in names.items():
        pairs += [(f"{title}, softmax", f"{figures[f'{figure}_softmax']:.4f}")]
        pairs += [(f"{title}, the run's calibrator", f"{figures['ece_own']:.4f}")] if f"{figure}_own" in figures else []
        pairs += [(f"{title}, fitted (cross-fitted)", f"{figures[f'{figure}_fitted']:.4f}")]
    return rows(pairs)


def store(predictor: Predictor, figures: dict[str, Any], run: Path, folder: Path | None) -> None:
    """Write the calibrated run to `folder`, which may be the run itself."""
    if predictor.calibrator.at_bound:
        print("vcc-infuse: these labels name no temperature (all right or all wrong?)", file=sys.stderr)
    if folder is None:
        print("nothing written; -o DIR writes a calibrated copy of the run, --in-place changes the run")
        return
    folder.mkdir(parents=True, exist_ok=True)
    config = run / "config.yaml"
    if folder != run and config.is_file():
        write_atomic(folder / "config.yaml", lambda temporary: temporary.write_bytes(config.read_bytes()))
    predictor.save(folder)
    write_json(folder / "calibration.json", figures)
    print(f"calibrated run: {folder}")
