"""`vcc-infuse calibrate RUN --data …`: fit a temperature to a finished run, and show what it gains."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import metrics
from ..calibrators import Softmax
from ..calibrators.ensemble_ts import EnsembleTS
from ..calibrators.temperature import TemperatureScaling
from ..errors import UserError
from ..inference.evaluate import infer
from ..inference.predictor import Predictor
from ..runs.folder import RunFolder
from ..utils.io import json_bytes
from ..utils.manifest import publish
from .finished_run import add_common, add_measured, labeled_images, run_parser
from .parser import one_of
from .train import two_columns

METHODS: dict[str, type[TemperatureScaling]] = {"TemperatureScaling": TemperatureScaling, "EnsembleTS": EnsembleTS}


def read(argv: Sequence[str]) -> Namespace:
    """The options, checked before anything is loaded."""
    parser = run_parser("calibrate", "Fit a calibrator to a run, on labeled images it was not trained on.")
    add_measured(parser, required=True, help="a named source, folder or zip with labeled images")
    parser.add_argument("--split", **one_of("test", "train"), default="test", help="which part of the data (test)")
    method = "TemperatureScaling"
    parser.add_argument("--method", **one_of(*METHODS), default=method, help=f"what to fit ({method})")
    parser.add_argument("--in-place", action="store_true", help="replace the calibrator of the run itself")
    add_common(parser, "folder for the calibrated run; nothing is written if not given")
    options = parser.read(argv)
    if options.output and options.in_place:
        raise UserError("--output and --in-place exclude each other; give one")
    if options.output:
        folder = Path(options.output)
        if folder.resolve() == Path(options.run).resolve():
            raise UserError(f"-o {folder} is the run itself; give another folder, or --in-place to change the run")
        if folder.is_file():
            raise UserError(f"-o {folder} is a file; give a folder")
        # What a killed command left, under names that begin with a dot, is no obstacle.
        used = folder.is_dir() and any(not file.name.startswith(".") for file in folder.iterdir())
        if used and not options.overwrite:
            raise UserError(f"-o {folder} exists already; give another folder, or add --overwrite")
    return options


def run(argv: Sequence[str]) -> None:
    """Fit on all images, print cross-fitted metrics, and store the calibrator if asked."""
    options = read(argv)
    predictor = Predictor.load(options.run, options.device, options.trust_code, engine=options.engine)
    dataset, examples = labeled_images(predictor, options, options.split)
    if dataset.shape != predictor.shape:
        raise UserError(f"--data {options.data} has examples of shape {dataset.shape}, the run {predictor.shape}")
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


def halves(y: Tensor) -> list[Tensor]:
    """Row numbers in two halves with the same class frequencies; the same halves in each call."""
    order = torch.from_numpy(np.random.RandomState(0).permutation(len(y)))
    order = order[y[order].argsort(stable=True)]
    return [order[0::2], order[1::2]]


def cross_fit(method: type[TemperatureScaling], logits: Tensor, y: Tensor) -> Tensor:
    """The probabilities of each half by a calibrator that was fitted to the other half."""
    if len(y) < 4:
        raise UserError(f"--data has {len(y)} labeled images; give at least 4, better a few hundred")
    probs = torch.empty(logits.shape, dtype=torch.float64)
    one, other = halves(y)
    for fitted, measured in ((one, other), (other, one)):
        probs[measured] = method().fit(logits[fitted], y[fitted]).probs(logits[measured]).double()
    return probs


def compare(
    method: type[TemperatureScaling], logits: Tensor, y: Tensor, own: Tensor, plain: bool, bins: int
) -> dict[str, Any]:
    """NLL and ECE of the softmax and of the calibrator; the ECE of the run's own confidence unless it is `plain`."""
    softmax = logits.double().softmax(1)
    fitted = cross_fit(method, logits, y)
    correct = softmax.argmax(1) == y
    figures = {"images": len(y), "error": metrics.error(softmax.argmax(1), y)}
    for name, probs in (("softmax", softmax), ("fitted", fitted)):
        figures[f"nll_{name}"] = metrics.nll(probs.clamp_min(1e-300).log(), y)
        figures[f"ece_{name}"] = metrics.ece(probs.amax(1), correct, bins)
    return figures if plain else {**figures, "ece_own": metrics.ece(own, correct, bins)}


def table(figures: dict[str, Any], calibrator: TemperatureScaling) -> str:
    """The metrics before and after, and the fitted parameters."""
    pairs = [
        ("images", str(figures["images"])),
        ("error (unchanged)", f"{100 * figures['error']:.2f} %"),
        ("temperature", f"{calibrator.temperature.item():.4f}"),
    ]
    if isinstance(calibrator, EnsembleTS):
        pairs += [("weights", " ".join(f"{w:.3f}" for w in calibrator.weights.tolist()))]
    for key, title in (("nll", "NLL"), ("ece", "ECE")):
        pairs += [(f"{title}, softmax", f"{figures[f'{key}_softmax']:.4f}")]
        pairs += [(f"{title}, the run's calibrator", f"{figures['ece_own']:.4f}")] if f"{key}_own" in figures else []
        pairs += [(f"{title}, fitted (cross-fitted)", f"{figures[f'{key}_fitted']:.4f}")]
    return two_columns(pairs)


def store(predictor: Predictor, figures: dict[str, Any], run: Path, folder: Path | None) -> None:
    """Write the calibrated run to `folder`, which may be the run itself; None writes nothing."""
    if predictor.calibrator.at_bound:
        reason = "no temperature fits these labels (are all predictions right, or all wrong?)"
        print(f"vcc-infuse: {reason}", file=sys.stderr)
    if folder is None:
        print("nothing written; -o DIR writes a calibrated copy of the run, --in-place changes the run")
        return
    copied = [run / name for name in ("config.yaml", "rows.npz") if folder != run]
    files = {path.name: path.read_bytes() for path in copied if path.is_file()}
    if folder == run and predictor.summary is not None:  # its cuts are those of the confidence that is replaced
        files["summary.json"] = json_bytes({**predictor.summary, "abstain": []})
    with RunFolder(folder).locked():
        publish(folder, {**files, **predictor.files(), "calibration.json": json_bytes(figures)})
    print(f"calibrated run: {folder}")
