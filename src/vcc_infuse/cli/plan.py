"""What `train` decides and says before it starts: the preset, the bank, and the time and memory to expect."""

from __future__ import annotations

import copy
import os
from dataclasses import replace
from typing import NamedTuple

from jsonargparse import Namespace

from ..algorithms import Algorithm
from ..bank.bank import Bank, BankConfig
from ..bank.embed import MEDIUM, embed_data, head, make_encoder, open_bank
from ..data.loading import load_ssl
from ..data.ssl_data import SSLData
from ..errors import OptionError, UserError
from ..models import Backbone, Timm
from ..training.auto import choose_preset, compare_finetuning, embedding_cost, training_cost
from ..training.trainer import Trainer
from ..utils.device import resolve_device
from ..utils.progress import duration
from .options import DATA_OPTIONS
from .registry import find_class

LONG = 3600.0  # seconds from which on a run is announced with a warning
TRIAL = 180.0  # seconds that a comparison with fine-tuning may take
TRIAL_STEPS = 30


class Plan(NamedTuple):
    """The preset, why it was chosen if by itself, and the data and their size if they are loaded already."""

    preset: str
    reason: str = ""
    data: SSLData | None = None
    size: int | None = None


def load_data(options: Namespace, objects: Namespace, resize: bool) -> SSLData:
    """The data that the options ask for; `resize` gives images of different sizes a common one, kept in `options`."""
    algorithm = find_class("algorithm", str(options.algorithm.class_path), Algorithm)
    shared = {"seed": options.seed, "progress": options.progress, "all_labels": algorithm.all_labels}
    given = {name: objects[name] for name in DATA_OPTIONS} | shared
    try:
        return load_ssl(**given)
    except OptionError as mistake:
        if not resize or (mistake.option, mistake.value) != ("size", None):
            raise
        announce(f"the images have different sizes and are resized to {MEDIUM}×{MEDIUM}; --size sets another")
        options.size = MEDIUM
        return load_ssl(**given | {"size": MEDIUM})


def decide(options: Namespace, objects: Namespace, model_given: bool) -> Plan:
    """The preset that fits the data, for a user who did not choose one."""
    model = objects.model
    own = model_given and not isinstance(model, Timm)
    data = load_data(options, objects, resize=not own)
    if own:
        return Plan("scratch", f"{type(model).__name__} is trained from random weights", data, options.size)
    choice = choose_preset(data, model if model_given else None)
    return Plan(choice.preset, choice.reason, data, options.size)


def announce(text: str) -> None:
    """One line on the screen, from the first process only."""
    if os.environ.get("RANK", "0") == "0":
        print(text, flush=True)


def frozen_trainer(trainer: Trainer, data: SSLData, options: Namespace, config: BankConfig) -> tuple[Trainer, Bank]:
    """A trainer of the head alone, and the bank of views that it will see."""
    model = trainer.model
    if not isinstance(model, Backbone):
        raise UserError(f"the preset frozen needs a pretrained network such as Timm, not {type(model).__name__}")
    encoder = make_encoder(model, data.dataset.shape)
    bank = open_bank(data, encoder, config, cache=options.cache, device=options.device)
    parts = (trainer.algorithm, trainer.calibrator, trainer.selector, trainer.config)
    return Trainer(head(config), *parts), bank


def say_costs(plan: Plan, trainer: Trainer, data: SSLData, bank: Bank | None) -> float:
    """Print the plan with the time and memory to expect, measured on a few batches; returns the seconds."""
    dataset, embedding, trial = data.dataset, 0.0, data
    if bank is not None:
        embedding, trial = embedding_cost(bank).seconds, replace(data, dataset=bank.dataset())
    parts = (trainer.model, trainer.algorithm, trainer.calibrator, trainer.selector)
    cost = training_cost(Trainer(*parts, trainer.config, head_init="random", init=None), trial)
    total = embedding + cost.seconds
    measured = len(dataset.test) if dataset.test else 0
    validated = dataset.evaluated_on == "validation"
    images = len(dataset.train) + (0 if validated else measured)
    facts = f"{images:,} images, {len(data.split.labeled):,} labels, {len(dataset.classes)} classes"
    facts += f", {measured} more labels kept for validation" if validated else ""
    skipped = f", {len(dataset.skipped)} skipped" if dataset.skipped else ""
    times = [f"embedding about {duration(embedding)}"] if embedding else []
    times += [f"training {trainer.steps:,} steps about {duration(cost.seconds)}"]
    memory = f", {cost.megabytes / 1024:.1f} GB" if cost.megabytes else ""
    why = f" ({plan.reason})" if plan.reason else ""
    device = resolve_device(trainer.config.device)
    announce(f"preset {plan.preset}{why}: {facts}{skipped}, {device.type}; {', '.join(times)}{memory}")
    if total > LONG:
        announce(f"warning: this will take about {duration(total)}; fewer --steps, a smaller --size or a GPU help")
    return total


def embed(data: SSLData, bank: Bank, model: Backbone, options: Namespace) -> SSLData:
    """The data as the views of the bank."""
    return embed_data(
        data, model, bank.config, cache=options.cache, device=options.device, progress=options.progress
    )  # fmt: skip


def advise(data: SSLData, model: Backbone, options: Namespace) -> None:
    """Compare the frozen features with a few steps of fine-tuning on labels kept aside, and say which is better."""
    bank = data.dataset.bank
    assert bank is not None
    seconds = 3 * 16 * TRIAL_STEPS * bank.seconds_per_view()  # a backward pass costs about two forward passes
    if seconds > TRIAL:
        announce(f"not compared with fine-tuning, which would take about {duration(seconds)}; try --preset finetune")
        return
    tuned = copy.deepcopy(model)
    if isinstance(tuned, Timm) and isinstance(bank.encoder, Timm):
        tuned.input_size = bank.encoder.input_size
    found = compare_finetuning(data, tuned, {"device": options.device, "seed": options.seed}, TRIAL_STEPS)
    if found is None:
        announce("too few labels per class to compare with fine-tuning")
        return
    facts = (
        f"on {found.labels} labels kept aside a linear probe on frozen features has {100 * found.frozen:.0f} % error, "
        f"{TRIAL_STEPS} steps of fine-tuning {100 * found.finetuned:.0f} %"
    )
    advice = "frozen features serve well" if found.preset == "frozen" else "--preset finetune may be better here"
    announce(f"{facts}: {advice}")
