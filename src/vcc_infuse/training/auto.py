"""What the preset `auto` decides: which way to train fits the data, how long it takes, and whether to fine-tune."""

from __future__ import annotations

import copy
import hashlib
import math
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from torch import Tensor, nn

from ..algorithms import Supervised
from ..bank.bank import Bank, BankConfig
from ..bank.choose import EncoderChoice, at_sizes, choose_encoder, trial_rows
from ..bank.embed import make_encoder
from ..bank.encoder import seconds_per_image
from ..bank.onnx_engine import BATCH
from ..calibrators import Softmax
from ..data.cache import cache_folder
from ..data.dataset import Examples
from ..data.split import hold_out
from ..data.ssl_data import SSLData
from ..errors import UserError
from ..inference.evaluate import evaluate
from ..models import Backbone, Classifier, Concat, Timm
from ..models.linear_probe import fit_probe
from ..runs.fingerprint import used_rows
from ..runs.folder import RunFolder
from ..utils.device import resolve_device, unit_features
from ..utils.io import read_json, write_json
from ..utils.progress import duration, phase, say
from .config import TrainConfig
from .cross_fit import fit_linear_probe, fit_products
from .hand_out import HandOut, Mix
from .presets import FINETUNE, FINETUNE_SIDE
from .trainer import Trainer

TINY = 24  # pixels per side below which a network pretrained on photographs has nothing to look at
WEAK_FEATURES = 0.4  # error of a probe above which fine-tuning may be worth its time
TRIAL_STEPS = 100  # after 30, fine-tuning was behind the probe where it ended far ahead
TRIAL_FORWARDS = 3 * 16 * TRIAL_STEPS  # a backward pass costs about two of them
PATIENCE = 180.0  # seconds that a comparison with fine-tuning may take
SAMPLE = 64  # test examples on which an evaluation is timed
SCAN = 0.7  # time of a pool example during a selection, relative to its time in a training step


class Choice(NamedTuple):
    """A preset, why it fits, and the network that was loaded to find out, if it is used."""

    preset: str
    reason: str
    encoder: Backbone | None = None
    lines: Sequence[str] = ()  # that show how the network was chosen


def choose_preset(
    data: SSLData,
    model: nn.Module | None,
    networks: Sequence[Timm | Concat],
    config: TrainConfig,
    bank: BankConfig,
    cache: str | None = None,
) -> Choice:
    """`frozen` for vectors, and for images large enough to embed if pretrained weights are at hand; else `scratch`."""
    shape = data.dataset.shape
    if model is not None and not networks:
        return Choice("scratch", f"{type(model).__name__} is trained from random weights")
    if data.dataset.slots is not None:
        return Choice("frozen", "the examples are embedded already")
    if len(shape) == 1:
        return Choice("frozen", "the examples are vectors")
    if min(shape[:2]) < TINY:
        return Choice("scratch", f"images of {shape[0]}×{shape[1]} pixels are too small for a pretrained network")
    try:
        choice = choose_network(data, networks, config, bank, cache)
    except UserError as fault:
        return Choice("scratch", str(fault))
    return choice if choice.reason else Choice("scratch", "weights is none")


def choose_network(
    data: SSLData, networks: Sequence[Timm | Concat], config: TrainConfig, bank: BankConfig, cache: str | None = None
) -> Choice:
    """The network and size that the labels and the minutes recommend, with its weights.

    One process chooses for all, because times differ between them.
    """
    chosen: list[EncoderChoice | UserError | None] = [None]
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    main = os.environ.get("RANK", "0") == "0"
    if main:
        try:
            chosen[0] = _choose_once(
                data, networks, cache, minutes=config.minutes, bank=bank, device=config.device, engine=config.engine,
                processes=processes, seed=config.seed,
            )  # fmt: skip
        except UserError as fault:
            chosen[0] = fault
    if processes > 1:
        PartialState(cpu=resolve_device(config.device).type == "cpu")
        broadcast_object_list(chosen)
    if not isinstance(chosen[0], EncoderChoice):
        raise cast(UserError, chosen[0])
    encoder, source = make_encoder(chosen[0].encoder, data.dataset.shape)
    return Choice("frozen", f"pretrained weights from {source}" if source else "", encoder, chosen[0].lines())


def _choose_once(data: SSLData, networks: Sequence[Timm | Concat], cache: str | None, **options: Any) -> EncoderChoice:
    """What `choose_encoder` chose for the same images, labels and options; it compares only if they are new."""
    rows, labels = trial_rows(data, options["seed"])
    candidates = {repr(option.get_params()): option for network in networks for option in at_sizes(network)}
    facts = [list(candidates), labels.tolist(), len(data.dataset.train), sorted(options.items())]
    digest = hashlib.sha256(repr(facts).encode())
    digest.update(np.ascontiguousarray(data.dataset.train.x[rows]).tobytes())
    path = cache_folder(cache) / "choices" / f"{digest.hexdigest()[:32]}.json"
    with suppress(UserError, OSError):  # damaged: it is written again
        kept = read_json(path) or {}
        if kept.get("chosen") in candidates:
            return EncoderChoice(candidates[kept["chosen"]], f"{kept['reason']} (compared in an earlier run)", (), 0.0)
    choice = choose_encoder(data, networks, cache=cache, **options)
    if choice.candidates:
        with suppress(OSError):  # a cache that cannot be written to was reported when images were decoded
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, {"chosen": repr(choice.encoder.get_params()), "reason": choice.reason})
    return choice


def training_seconds(trainer: Trainer, data: SSLData) -> float:
    """Time for all steps, evaluations and selections of a run, measured on a few; the trainer starts over later."""
    if not trainer.steps:
        return fit_products(trainer, data) * seconds_per_product()
    per_step = trainer.seconds_per_step(data)
    state = trainer.state_
    seconds = per_step * trainer.steps
    test = state.data.dataset.test
    if test is not None:
        sample = Examples(test.x[:SAMPLE], test.y[:SAMPLE])
        began = time.perf_counter()
        evaluate(state.classifier(), Softmax(), sample, state.views, state.device)
        per_evaluation = (time.perf_counter() - began) * len(test) / len(sample)
        seconds += math.ceil(trainer.steps / trainer.config.eval_every) * per_evaluation
    scheduler = state.coreset_scheduler
    if scheduler.selector is not None:
        selections = 1 if scheduler.selector.static else math.ceil(trainer.steps / scheduler.interval)
        seconds += SCAN * per_step * selections * state.task.pool / state.task.unlabeled_batch_size
    return seconds


def seconds_per_product() -> float:
    """Time of a pair of numbers in a product of matrices on this machine."""
    rows = torch.ones(512, 512)
    seconds = []
    for _ in range(3):  # the first one warms up
        began = time.perf_counter()
        torch.mm(rows, rows)
        seconds.append(time.perf_counter() - began)
    return min(seconds) / 512**3


def probe_error(data: SSLData) -> float | None:
    """Cross-validated error of a linear probe on the labels of embedded data; None with too few labels to tell."""
    labels = torch.from_numpy(data.labeled_y)
    return fit_probe(_features(data, data.split.labeled), labels, len(data.dataset.classes)).error


def _features(data: SSLData, rows: np.ndarray) -> Tensor:
    """Standardized features of the plain view."""
    dataset = data.dataset
    plain = torch.from_numpy(np.array(dataset.train.x[rows, 0]))
    return unit_features(plain, torch.tensor(dataset.mean), torch.tensor(dataset.std))


def write_first_model(trainer: Trainer, data: SSLData, folder: RunFolder) -> None:
    """Write the linear probe on the plain views to the run folder, and say how often it errs.

    Whoever cannot wait for the other views, or stops the run, has a model; that of the finished run replaces it.
    """
    trainer.prepare(data)
    state = trainer.state_
    state.handed_out = HandOut(fit_linear_probe(trainer), Softmax(), Mix(0.0), {})  # `fit` makes a new state
    if not state.main:
        return
    folder.keep_model(state.predictor().files(), used_rows(state.data))
    error = probe_error(data)
    rate = "" if error is None else f", {100 * error:.0f} % error on the labels, cross-validated"
    say(f"{folder.path} has a first model: a linear probe on the plain views{rate}", shown=trainer.config.progress)


class Comparison(NamedTuple):
    """Error on labels that were kept aside: of a probe on frozen features, and after a few steps of fine-tuning."""

    frozen: float
    finetuned: float
    labels: int

    @property
    def favors_finetuning(self) -> bool:
        """Whether fine-tuning errs less. It is far better at the end than after so few steps (docs/fine-tuning.md)."""
        return self.finetuned < self.frozen


def compare_finetuning(data: SSLData, config: TrainConfig, *, steps: int = TRIAL_STEPS) -> Comparison | None:
    """Keep a third of the labels aside, and predict them by a probe and by a network that is fine-tuned for a while.

    None where the classes have too few labels to keep any aside.
    """
    bank = data.dataset.bank
    labels = data.dataset.train.y
    if bank is None or np.bincount(data.labeled_y).min() < 3:
        return None
    classes = len(data.dataset.classes)
    split = hold_out(data.split, labels, 1 / 3, data.dataset.classes)
    truth = torch.from_numpy(labels[split.held_out])
    probe = fit_probe(_features(data, split.labeled), torch.from_numpy(labels[split.labeled]), classes)
    frozen = (_features(data, split.held_out) @ probe.weight.T + probe.bias).argmax(1)
    images = replace(data, dataset=replace(bank.source, test=None), split=replace(split, held_out=split.held_out[:0]))
    backbone = trial_network(bank.encoder)
    model = Classifier(backbone, nn.Linear(backbone.features, classes)).to(memory_format=torch.channels_last)
    options = {name: value for name, value in FINETUNE.items() if name != "model"}
    options |= {"steps": steps, "progress": False, "device": config.device, "seed": config.seed, "cross_fit": False}
    trainer = Trainer(model, Supervised(), config=TrainConfig(**options))
    trainer.fit(images)
    finetuned = trainer.predictor().predict(bank.source.train.x[split.held_out]).labels.cpu()
    frozen_error, finetuned_error = (float((answers != truth).float().mean()) for answers in (frozen, finetuned))
    return Comparison(frozen_error, finetuned_error, len(truth))


def trial_network(encoder: nn.Module) -> Backbone:
    """A copy of the frozen network that learns, for smaller images where it takes any size: a trial must be short."""
    backbone = copy.deepcopy(cast(Backbone, encoder)).requires_grad_(True)
    if isinstance(backbone, Timm):
        backbone.input_size = trial_side(backbone)
    return backbone


def trial_side(network: Timm) -> int | None:
    """The side of the images of a trial; that of the network if it is built for one size."""
    fixed = cast(dict[str, Any], network.net.pretrained_cfg).get("fixed_input_size")
    return network.input_size if fixed or network.input_size is None else min(network.input_size, FINETUNE_SIDE)


def trial_seconds(bank: Bank) -> float:
    """How long `compare_finetuning` takes, about: in PyTorch, whatever engine embeds."""
    network = trial_network(bank.encoder).eval()
    return TRIAL_FORWARDS * seconds_per_image(network, bank.plain_batch(BATCH))


def advise(data: SSLData, bank: Bank, config: TrainConfig) -> None:
    """Say whether frozen features serve; compare with a few steps of fine-tuning where they seem weak."""
    error = probe_error(data)
    if error is None:
        return say("too few labels per class to tell whether frozen features work", shown=config.progress)
    facts = f"a linear probe on the frozen features has {100 * error:.0f} % error on the labels, cross-validated"
    if error <= WEAK_FEATURES:
        return say(f"{facts}: frozen features work well", shown=config.progress)
    seconds = trial_seconds(bank)
    if seconds > PATIENCE:
        left_out = f"whether --preset finetune is better was not compared: that would take {duration(seconds)}"
        return say(f"{facts}; {left_out}", shown=config.progress)
    say(facts, shown=config.progress)
    with phase("comparing with fine-tuning", shown=config.progress):
        errors = compare_finetuning(data, config)
    if errors is not None:
        better = "--preset finetune may be better here" if errors.favors_finetuning else "frozen features work well"
        numbers = f"frozen {100 * errors.frozen:.0f} %, fine-tuned {100 * errors.finetuned:.0f} % error"
        say(f"on {errors.labels} labels kept aside: {numbers}: {better}", shown=config.progress)
    return None
