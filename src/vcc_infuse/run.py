"""The only way a run is put together: RunConfig → load → resolve → [embed] → Trainer.fit → Result."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Unpack, cast

from torch import nn

from .algorithms import Algorithm
from .algorithms.baselines import ClosedForm
from .bank.bank import Bank, BankConfig
from .bank.embed import head, input_side, make_encoder, open_bank
from .calibrators import Calibrator
from .data.ssl_data import SSLData, load_ssl, network_size
from .errors import UserError, option_prefix
from .inference.predictor import Predictor
from .models import MLP, Backbone, Concat, Timm
from .run_config import PartConfig, RunConfig, RunOptions, pretrained_networks, resolve
from .runs import checkpoint
from .runs.fingerprint import changed_options, options_of, refuse
from .runs.folder import RunFolder
from .selectors import Selector
from .training import auto
from .training.callbacks import Callback
from .training.config import check_compatible, check_lazy
from .training.copies import group_copies
from .training.cross_fit import cross_fit_seconds
from .training.interrupt import Interrupted
from .training.presets import FINETUNE_SIDE
from .training.summary import about_skipped, peak_memory
from .training.trainer import Trainer
from .utils.device import resolve_device
from .utils.io import read_json, read_yaml
from .utils.manifest import check_links, settle
from .utils.progress import duration, phase, say
from .utils.serialization import Trust

__all__ = ["Result", "RunConfig", "resume", "train"]

FINISH = 3.0  # seconds for a linear probe, the report, and everything else that is not timed
LONG = 3600.0  # seconds from which on a run is announced with a warning
KEEP = 0.75  # of the side of decoded photos: networks above it are shown smaller versions of these
# A run that is continued may find its data elsewhere, use another device and show something else.
CHANGEABLE = ("data", "root", "label_file", "cache", "device", "engine", "progress")


@dataclass(frozen=True)
class Prepared:
    """A run that is ready to start: complete options, data, the trainer, and the bank to embed if there is one."""

    config: RunConfig
    data: SSLData
    trainer: Trainer
    bank: Bank | None = None
    reason: str = ""  # why `auto` chose the preset


def prepare(config: RunConfig, data: SSLData | None = None, *, callbacks: Sequence[Callback] = ()) -> Prepared:
    """Load the data, choose what is open, open the bank, and make the one Trainer of the run. Nothing is written.

    `data` are loaded already, perhaps embedded, and take the place of those that `config` names.
    """
    # Mistakes are reported before images are decoded; what nobody named may still change with the preset.
    likely = resolve(config, "scratch" if config.preset == "auto" else config.preset)
    options = likely.train_config()
    algorithm, calibrator, selector = (likely.build(name) for name in ("algorithm", "calibrator", "selector"))
    check_compatible(algorithm, calibrator, selector)
    check_lazy(algorithm, options.lazy)
    model = None if config.model is None else likely.build("model")
    networks = pretrained_networks(config, model)
    asked = config
    config, data = _loaded(asked, data, algorithm, networks)
    with phase("loading the network", shown=options.progress and config.preset in ("auto", "frozen")):
        choice = _choose(config, data, model, networks)
    say(*choice.lines, shown=options.progress)
    if _oversized(asked, config, choice.encoder):
        config, data = _loaded(asked, None, algorithm, [cast(Timm, choice.encoder)])
    config = resolve(config, choice.preset)
    algorithm, calibrator = (config.build(name) for name in ("algorithm", "calibrator"))
    network, config = _network(config, data, model, choice.encoder)
    trainer = Trainer(network, algorithm, calibrator, selector, config.train_config(), callbacks=callbacks)
    bank = None
    if choice.encoder is not None:
        with phase("comparing the images with the bank", shown=options.progress):
            bank = open_bank(
                data, choice.encoder, config.bank, cache=config.cache, device=options.device, engine=options.engine
            )
    return Prepared(config, data, trainer, bank, choice.reason)


def _loaded(
    config: RunConfig, data: SSLData | None, algorithm: Algorithm, networks: Sequence[Timm | Concat]
) -> tuple[RunConfig, SSLData]:
    """The data, and the configuration with the size they were given: what the largest network needs."""
    if data is not None or isinstance(config.data, SSLData):
        return config, data or cast(SSLData, config.data)
    source = config.data
    options = config.train_config()
    with phase(f"reading {source.data}", shown=options.progress):
        if networks and source.size is None:
            with option_prefix("model"):
                side = max(map(input_side, networks))
            size = network_size(source.data, side, cache=config.cache, limits=source.limits, progress=options.progress)
            source = replace(source, size=size)
        loaded = load_ssl(
            **vars(source), cache=config.cache, seed=options.seed, all_labels=algorithm.all_labels,
            progress=options.progress,
        )  # fmt: skip
    if source.size != config.data.size:
        resized = f"the images are resized to {source.size}×{source.size} for the network; the option size sets another"
        say(resized, shown=options.progress)
    return replace(config, data=source), loaded


def _oversized(asked: RunConfig, config: RunConfig, encoder: Backbone | None) -> bool:
    """Whether photos were decoded much larger than the chosen network needs, for candidates that were larger.

    Then reading them again pays: every view would be made of the larger image.
    """
    if isinstance(asked.data, SSLData) or isinstance(config.data, SSLData) or not isinstance(encoder, Timm | Concat):
        return False
    return asked.data.size is None and config.data.size is not None and input_side(encoder) < KEEP * config.data.size


def _choose(
    config: RunConfig, data: SSLData, model: nn.Module | None, networks: Sequence[Timm | Concat]
) -> auto.Choice:
    """The preset, and for `frozen` the network that embeds, with its weights."""
    bank = config.bank
    if isinstance(resolve(config, "frozen").build("algorithm"), ClosedForm):
        bank = replace(bank, lazy=True)  # only plain views are going to be embedded, so larger networks fit the time
    with option_prefix("model"):
        if config.preset == "auto":
            return auto.choose_preset(data, model, networks, config.train_config(), bank, config.cache)
        embedded = len(data.dataset.shape) == 1 and not isinstance(model, Timm | Concat)  # features already
        if config.preset != "frozen" or embedded:
            return auto.Choice(config.preset, "")
        if networks:
            return auto.choose_network(data, networks, config.train_config(), bank, config.cache)
        if not isinstance(model, Backbone):
            raise UserError(f"the preset frozen needs a pretrained network such as Timm, not {type(model).__name__}")
        return auto.Choice("frozen", "", make_encoder(model, data.dataset.shape)[0])


def _network(
    config: RunConfig, data: SSLData, model: nn.Module | None, encoder: Backbone | None
) -> tuple[nn.Module, RunConfig]:
    """What is trained, and the configuration with the network as it is used."""
    if encoder is not None:
        size = getattr(encoder, "input_size", None)
        if isinstance(config.model, PartConfig) and size:  # so that config.yaml repeats the run whatever a default is
            origin = {"name": encoder.name, "weights": encoder.weights} if isinstance(encoder, Timm | Concat) else {}
            config = replace(config, model=config.model.with_defaults(**origin, input_size=size))
        return head(config.bank), config
    if config.preset == "finetune" and len(data.dataset.shape) == 3 and min(data.dataset.shape[:2]) < FINETUNE_SIDE:
        config = _enlarging(config)
        model = config.build("model")
    if model is None and len(data.dataset.shape) == 1:
        model = head(config.bank) if config.preset == "frozen" else MLP()
    if model is None:
        return config.build("model"), config
    return model, replace(config, model=model)


def _enlarging(config: RunConfig) -> RunConfig:
    """The configuration with a network of timm that enlarges images, unless the user set another size."""
    if isinstance(config.model, PartConfig) and config.model.kind("model") is Timm:
        return replace(config, model=config.model.with_defaults(input_size=FINETUNE_SIDE))
    return config


class Result(NamedTuple):
    """What a run leaves behind.

    Args:
        summary: the contents of summary.json; empty on all but the first of several processes.
        predictor: the trained classifier.
        folder: the run folder; None without `out`.
    """

    summary: dict[str, Any]
    predictor: Predictor
    folder: Path | None


def train(
    data: str | os.PathLike[str] | SSLData,
    *,
    preset: str = "auto",
    model: nn.Module | type | str | None = None,
    algorithm: Algorithm | type | str | None = None,
    calibrator: Calibrator | type | str | None = None,
    selector: Selector | type | str | None = None,
    bank: BankConfig | None = None,
    callbacks: Sequence[Callback] = (),
    **options: Unpack[RunOptions],
) -> Result:
    """Train a classifier on few labels and many unlabeled images, like `vcc-infuse train`.

    Args:
        data: a folder or zip file of images, the name of a known dataset (see `vcc-infuse list`), or data in memory.
        preset: auto chooses by the data; frozen trains a head on views embedded once by a pretrained network; finetune
            trains all layers of one; scratch trains a small network; paper and usb follow those protocols.
        model: the network, as an object, class or name; the preset's if not given.
        algorithm: the semi-supervised method; FixMatch if not given.
        calibrator: how far a pseudo label is trusted; the softmax confidence if not given. With the preset frozen and
            neither given it is SelfTraining.
        selector: which unlabeled images are trained on; all if not given.
        bank: which views are embedded with the preset frozen.
        callbacks: observers of the run; see Callback.
        options: options of `load_ssl` (labels, size, label_file, …) and of TrainConfig (steps, lr, seed, out, …).

    Returns:
        The summary, a Predictor, and the run folder (None without `out`).

    Example:
        >>> import vcc_infuse
        >>> result = vcc_infuse.train("digits", labels=40, steps=20, progress=False)
        >>> result.summary["steps"], result.predictor.classes[3]
        (20, '3')
    """
    parts = {"model": model, "algorithm": algorithm, "calibrator": calibrator, "selector": selector, "bank": bank}
    config = RunConfig.from_options({"data": data, "preset": preset, **parts, **options})
    return cast(Result, start(config, callbacks=callbacks))


def resume(folder: str | os.PathLike[str], *, force: bool = False, trust_code: Trust = False, **options: Any) -> Result:
    """Continue an interrupted run, or extend a finished one with `steps`, like `vcc-infuse train --resume`.

    Args:
        folder: the run folder.
        force: continue although options, data or the number of processes have changed.
        trust_code: import classes of other packages that the run names.
        options: steps to extend a finished run; and data, root, label_file or cache if they are elsewhere now, device
            and progress.
    """
    config = resumed_config(os.fspath(folder), options, force=force, trust_code=trust_code)
    return cast(Result, start(config, resume=True, force=force))


def resumed_config(
    folder: str, options: Mapping[str, Any], *, force: bool = False, trust_code: Trust = False
) -> RunConfig:
    """The options of a run to continue, unless it is finished, changed, or was told to change what it must not."""
    path = Path(folder) / "config.yaml"
    if not path.is_file():
        raise UserError(f"--resume {folder}: there is no config.yaml; give the folder of an earlier run (its --out)")
    settle(path.parent)
    check_links(path.parent, ["config.yaml"])
    stored = read_yaml(path)
    finished = (path.parent / "summary.json").is_file()
    before = None if force else checkpoint.read_fingerprint(RunFolder(folder).checkpoints)
    if before is not None:  # options that were edited since then are refused before the data are loaded
        now = options_of(stored)
        complete = "steps" in options or before.get("step") == before["total"]
        steps = {"steps": now.get("steps")} if complete else {}
        remedy = "put it back, start a new run with --config, or add --force"
        refuse(changed_options({**before["config"], **steps}, now), folder, False, remedy)
    if finished:
        _check_extension(folder, options.get("steps"), stored.get("steps"))
    allowed = (*CHANGEABLE, "steps") if finished else CHANGEABLE
    if other := [name for name in options if name not in allowed]:
        remedy = f"start a new run with --config {path}"
        raise UserError(f"--resume continues a run with its own options, so --{other[0]} cannot change; {remedy}")
    return RunConfig.from_options({**stored, **options, "out": folder}, trust_code=trust_code)


def _check_extension(folder: str, steps: Any, before: Any) -> None:
    """Refuse to continue a finished run unless it gets more steps."""
    metrics = f"its metrics are in {folder}/summary.json"
    if steps is None:
        raise UserError(f"--resume {folder}: this run is finished; {metrics}; --steps N extends it to N steps")
    if not (read_json(Path(folder) / "summary.json") or {}).get("steps"):
        raise UserError(f"--resume {folder}: this run is finished, and its method has no steps to extend; {metrics}")
    if isinstance(steps, int) and isinstance(before, int) and steps <= before:
        raise UserError(f"--steps {steps} must be more than the {before} of {folder}: it is the new total")
    if not RunFolder(folder).has_checkpoint():
        raise UserError(f"--resume {folder}: there is no checkpoint to extend; start from it with --init {folder}")


def start(
    config: RunConfig,
    *,
    resume: bool = False,
    force: bool = False,
    dry_run: bool = False,
    callbacks: Sequence[Callback] = (),
) -> Result | None:
    """Put a run together and train; `dry_run` stops after saying what would be done, and returns None."""
    began = time.perf_counter()
    out = config.train.get("out")
    folder = RunFolder(out) if out else None
    if folder and not resume:
        folder.check_free()
    run = prepare(config, callbacks=callbacks)
    progress = run.trainer.config.progress
    spent = time.perf_counter() - began
    expected = _announce(run, spent, shown=progress or dry_run) if dry_run or (progress and not resume) else None
    if dry_run:
        say(*about_skipped(run.data.dataset.skipped, None), shown=True)
        return None
    data = run.data
    if run.bank is not None:
        with _continuable(folder, run.config, resume):
            data = _embedded(run, run.bank, folder, resume=resume)
    text = run.config.to_yaml() if folder else None
    created = bool(run.bank and folder)  # by `_continuable`
    summary = run.trainer.fit(data, config=text, resume=resume or created, force=force)
    if summary and expected is not None:
        spent = time.perf_counter() - began
        memory = f", {summary['peak_rss_mb'] / 1024:.1f} GB" if summary.get("peak_rss_mb") else ""
        say(f"all of it took {duration(spent)} (expected {duration(expected)}){memory}", shown=progress)
    run.trainer.close()
    return Result(summary, run.trainer.predictor(), None if folder is None else folder.path)


def _embedded(run: Prepared, bank: Bank, folder: RunFolder | None, *, resume: bool) -> SSLData:
    """The data as rows of embedded views. The plain ones come first, and with them a model that can be used."""
    data = run.data
    progress = run.trainer.config.progress
    bank.embed_plain(progress=progress)
    if data.dataset.groups is None and getattr(run.config.data, "group_by", "auto") == "auto":
        data = group_copies(data, bank)
        bank.source = data.dataset
    data = replace(data, dataset=bank.dataset())
    needs_more = not isinstance(run.trainer.algorithm, ClosedForm)
    if needs_more and folder and bank.missing() and not folder.has_checkpoint():  # which knows more than the probe
        auto.write_first_model(run.trainer, data, folder)
    if run.reason and progress and not resume:  # nobody would read it otherwise
        auto.advise(data, bank, run.trainer.config)
    if needs_more:
        bank.embed_all(data.split.labeled, progress=progress)
    return data


@contextmanager
def _continuable(folder: RunFolder | None, config: RunConfig, resume: bool) -> Iterator[None]:
    """Write config.yaml before the first long phase, so that `resume` continues a run stopped in any phase."""
    new = folder if not resume and os.environ.get("RANK", "0") == "0" else None
    if new:
        new.create(config.to_yaml())
    try:
        yield
    except (KeyboardInterrupt, Interrupted) as stop:
        kept = "what is embedded is kept"
        how = f"{kept}; continue with: vcc-infuse train --resume {folder.path}" if folder else f"{kept} in the cache"
        raise Interrupted(f"interrupted before the first step; {how}", getattr(stop, "signal", 2)) from stop
    except UserError:
        if new:
            new.remove_unstarted()
        raise


def _announce(run: Prepared, spent: float, *, shown: bool) -> float:
    """Print the plan, and the time and memory to expect, measured on a few batches.

    Returns:
        Seconds of all phases together, those that are `spent` already included.
    """
    config = run.trainer.config
    trial = run.data
    times = []
    began = time.perf_counter()
    total = 0.0
    with phase("timing a few steps", shown=config.progress):
        if run.bank is not None:
            # Without the bank itself, which would embed views that only the trial needs.
            trial = replace(run.data, dataset=replace(run.bank.dataset(), bank=None))
            only_plain = isinstance(run.trainer.algorithm, ClosedForm)
            views = run.bank.missing(plain=only_plain)
            times.append(run.bank.about(plain=only_plain))
            total = views * run.bank.seconds_per_view(plain=only_plain) if views else 0.0
            plain = run.bank.missing(plain=True)
            soon = f" (plain views first, {duration(total * plain / views)})" if 0 < plain < views else ""
            times += [f"embedding about {duration(total)}{soon}"] if total else []
        seconds = auto.training_seconds(run.trainer, trial)
    if run.trainer.steps:
        times.append(f"training {run.trainer.steps:,} steps about {duration(seconds)}")
    if again := cross_fit_seconds(run.trainer, trial, seconds):
        times.append(f"cross-validating about {duration(again)}")
    total += again + seconds + FINISH + spent + time.perf_counter() - began
    times.append(f"about {duration(total)} in all")
    needs = f", at least {memory / 1024:.1f} GB" if (memory := peak_memory()) else ""
    why = f" ({run.reason})" if run.reason else ""
    device = resolve_device(config.device).type
    say(f"preset {run.config.preset}{why}: {_facts(run.data)}, {device}; {', '.join(times)}{needs}", shown=shown)
    if total > LONG:
        say(f"warning: this will take about {duration(total)}; fewer steps, a smaller size or a GPU help", shown=shown)
    return total


def _facts(data: SSLData) -> str:
    """How many images, labels and classes there are."""
    dataset = data.dataset
    measured = len(dataset.test) if dataset.test else 0
    validated = dataset.evaluated_on == "validation"
    images = len(dataset.train) + (0 if validated else measured)
    facts = f"{images:,} images, {len(data.split.labeled):,} labels, {len(dataset.classes)} classes"
    facts += f", {measured} more labels kept for validation" if validated else ""
    return facts + (f", {len(dataset.skipped)} skipped" if dataset.skipped else "")
