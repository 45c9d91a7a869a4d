"""Does fine-tuning win where frozen features fail? A recipe is chosen on two datasets and reported on two others.

    VCC_INFUSE_DATA=/folder/with/zips OMP_NUM_THREADS=1 python -m benchmarks finetune --out results/finetune

The folder holds svhn.zip, cifar100.zip, mnist.zip and cifar10.zip (class folders under train/ and test/). It appends
one line per run to OUT.jsonl, so that a study that was stopped continues, and writes OUT.md. First it runs what the
recipe is chosen by; what is reported follows with --report.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

import vcc_infuse
from vcc_infuse import BankConfig, FixMatch, SSLData, Supervised, Timm, TrainConfig, Trainer
from vcc_infuse.bank.embed import make_encoder, open_bank
from vcc_infuse.cli.parser import Parser, integer
from vcc_infuse.data.dataset import Dataset, Examples
from vcc_infuse.data.split import balanced, hold_out
from vcc_infuse.data.ssl_data import load
from vcc_infuse.training.auto import Comparison, compare_finetuning
from vcc_infuse.utils.io import write_text

from .methods import read_runs
from .whole import data_folder

NETWORK = "tf_efficientnet_lite0"
SIDE = 64
TESTS = 1000
STEPS = 120


class Cell(NamedTuple):
    """A dataset: its file, training images, labels shown, and whether a mirrored image keeps its class."""

    source: str
    images: int
    labels: int
    flip: bool
    over_photos: bool = False


CHOOSING = {"svhn": Cell("svhn.zip", 2000, 250, False), "cifar100": Cell("cifar100.zip", 2000, 400, True)}
REPORTED = {
    "digits over photos": Cell("mnist.zip", 1000, 250, False, over_photos=True),
    "clothes over photos": Cell("fashion_mnist", 1000, 250, True, over_photos=True),
}
CELLS = CHOOSING | REPORTED
# What all rows share, written out, so that a row stays what it was if the preset changes. No choice between a run and
# its probe; small images fit into memory at once.
COMMON: dict[str, Any] = {
    **{"head_init": "probe", "head_scale": 3.0, "optimizer": "adamw", "lr": 3e-4, "head_lr": 3e-3},
    **{"batch_size": 16, "unlabeled_ratio": 3, "clip_grad": 1.0, "weight_decay": 0.05, "warmup_steps": 10},
    **{"freeze_bn": True, "precision": "fp32", "device": "cpu", "progress": False},
}
SLOW: dict[str, Any] = {"lr": 1e-4, "head_lr": 1e-3}
FAST: dict[str, Any] = {"lr": 1e-3}
BASE = "FixMatch, lr 3e-4, head 3e-3"
ROWS: dict[str, dict[str, Any]] = {
    BASE: {},
    "FixMatch, lr 1e-4, head 1e-3": SLOW,
    "FixMatch, lr 1e-3, head 3e-3": FAST,
    "labels only": {"supervised": True},
    "labels only, 240 steps": {"supervised": True, "steps": 240},
    "BatchNorm statistics follow the data": {"freeze_bn": False},
    "only norms and head learn, lr 1e-3": {"norms_only": True, "lr": 1e-3},
    "only norms and head learn, lr 3e-3": {"norms_only": True, "lr": 3e-3},
    "first 3 of 8 stages fixed": {"freeze": 3},
    "first 5 of 8 stages fixed": {"freeze": 5},
    "96 px, labels only": {"side": 96, "supervised": True},
    "96 px, 60 steps": {"side": 96, "steps": 60},
    # Added when seed 0 of the rows above was known.
    "labels only, 240 steps, first 3 stages fixed": {"supervised": True, "steps": 240, "freeze": 3},
    "1 unlabeled image per labeled one, 200 steps": {"unlabeled_ratio": 1, "steps": 200},
    "96 px, labels only, 160 steps, first 3 stages fixed": {"side": 96, "supervised": True, "steps": 160, "freeze": 3},
    "128 px, labels only, 60 steps": {"side": 128, "supervised": True, "steps": 60},
    "96 px, 1 unlabeled image per labeled one, 90 steps": {"side": 96, "unlabeled_ratio": 1, "steps": 90},
}
# Likewise added, and no finalists: how the best go on, at the length of a preset.
LONG_ROWS: dict[str, dict[str, Any]] = {
    "FixMatch, 300 steps": {"steps": 300},
    "96 px, labels only, 270 steps": {"side": 96, "supervised": True, "steps": 270},
    "96 px, 1 unlabeled image per labeled one, 300 steps": {"side": 96, "unlabeled_ratio": 1, "steps": 300},
}
# Rates of the search and the rows that train with them; a tie goes to the one that stands first.
RATES = (BASE, "FixMatch, lr 1e-4, head 1e-3", "FixMatch, lr 1e-3, head 3e-3")
SEARCH = "FixMatch, rate found on the labels"
SEARCH_STEPS = 40
FINALISTS = 3  # rows with a second seed, beside the preset's and that of the search
MINUTE = "96 px, labels only"
THE_PRESET = "96 px, 1 unlabeled image per labeled one, 300 steps"
REPORTED_ROWS = (MINUTE, THE_PRESET)
NATIVE = "frozen at 224 px, the default method"
NATIVE_PROBE = "frozen at 224 px, linear probe"
AUTO = "the comparison of `auto`"
HANDED = "the preset, cross-validated"
PROBE = f"linear probe at {SIDE} px, where fine-tuning starts"
KEPT = ("error", "error_method", "error_probe", "ece", "pseudo_label_coverage", "pseudo_label_precision")
KEPT_HANDED = ("error", "error_method", "error_probe", "ece", "ece_calibrated", "handed_out")
Run = dict[str, Any]
Job = tuple[str, str, int]


class NormsOnly(Timm):
    """A network of which only the scales and shifts of its norms learn."""

    def setup(self, shape: tuple[int, ...]) -> None:
        """Create the network, and fix everything else."""
        super().setup(shape)
        self.net.requires_grad_(False)
        for layer in self.net.modules():
            if isinstance(layer, nn.BatchNorm2d | nn.LayerNorm | nn.GroupNorm):
                layer.requires_grad_(True)


def main(argv: Sequence[str]) -> None:
    """Run what is missing, and write the page after every run."""
    parser = Parser("python -m benchmarks finetune", "Measure fine-tuning where frozen features are weak.")
    parser.add_argument("--report", action="store_true", help="also run the datasets on which the recipe is reported")
    parser.add_argument("--seeds", type=integer(), default=3, help="runs of each reported row (3)")
    parser.add_argument("--out", default="results/finetune", help="writes OUT.jsonl and OUT.md (results/finetune)")
    options = parser.read(argv)
    folder = data_folder()
    torch.set_num_threads(1)
    log = Path(f"{options.out}.jsonl")
    runs = read_runs(log)
    with tempfile.TemporaryDirectory() as cache:
        while missing := next_job(runs, options.seeds if options.report else 0):
            runs.append(run_one(*missing, folder, cache))
            with log.open("a") as file:
                file.write(json.dumps(runs[-1]) + "\n")
            print(runs[-1], flush=True)
            write_text(Path(f"{options.out}.md"), page(runs, options.seeds))
    write_text(Path(f"{options.out}.md"), page(runs, options.seeds))


def next_job(runs: Sequence[Run], seeds: int) -> Job | None:
    """The first run that is missing; later ones depend on what the earlier ones found."""
    done = {(run["data"], run["row"], run["seed"]) for run in runs}
    return next((job for job in jobs(runs, seeds) if job not in done), None)


def jobs(runs: Sequence[Run], seeds: int) -> list[Job]:
    """Every row once where the recipe is chosen, the best once more; then what is reported, with `seeds` seeds."""
    first = [(name, row, 0) for row in (*ROWS, SEARCH, NATIVE) for name in CHOOSING]
    done = {(run["data"], run["row"], run["seed"]) for run in runs}
    if not done.issuperset(first):
        return first
    best = dict.fromkeys((BASE, *finalists(runs)))
    again = [(name, row, 1) for row in (*best, SEARCH) for name in CHOOSING]
    found = [(run["data"], run["rate"], run["seed"]) for run in runs if run["row"] == SEARCH]
    longer = [("svhn", row, 0) for row in LONG_ROWS]
    reported = [(name, row, seed) for row in (MINUTE, NATIVE) for name in REPORTED for seed in range(seeds)]
    reported += [(name, row, seed) for seed in range(seeds) for name in REPORTED for row in (THE_PRESET, AUTO)]
    reported += [(name, HANDED, seed) for seed in range(seeds) for name in REPORTED]
    return first + again + found + longer + reported


def finalists(runs: Sequence[Run]) -> list[str]:
    """The rows with the lowest mean error of the first seed."""
    means = {row: np.mean([error_of(runs, (name, row, 0)) for name in CHOOSING]) for row in ROWS}
    return sorted(means, key=lambda row: means[row])[:FINALISTS]


def run_one(name: str, row: str, seed: int, folder: Path, cache: str) -> Run:
    """One run, with its CPU seconds: those of evaluations and of embedding included."""
    data = shown(name, seed, folder)
    job = {"data": name, "row": row, "seed": seed}
    if row == NATIVE:
        return job | frozen(data, seed, cache)
    if row == AUTO:
        return job | compared(data, seed, cache)
    began = time.process_time()
    measure = {SEARCH: search, HANDED: handed_out}.get(row) or partial(finetuned, row=row)
    found = measure(data, seed=seed)
    return job | found | {"seconds_cpu": time.process_time() - began}


@lru_cache(maxsize=1)
def load_cell(name: str, folder: Path) -> Dataset:
    """A stratified part of the training set and a part of the test set, the same for every seed."""
    cell = CELLS[name]
    dataset = load(str(folder / cell.source) if cell.source.endswith(".zip") else cell.source)
    generator = np.random.RandomState(7)
    kept = cell.images // len(dataset.classes)
    of_class = [np.flatnonzero(dataset.train.y == number) for number in range(len(dataset.classes))]
    rows = np.sort(np.concatenate([generator.permutation(found)[:kept] for found in of_class]))
    assert dataset.test is not None
    tests = np.sort(generator.permutation(len(dataset.test))[:TESTS])
    train = Examples(np.array(dataset.train.x[rows]), dataset.train.y[rows])
    test = Examples(np.array(dataset.test.x[tests]), dataset.test.y[tests])
    if cell.over_photos:
        photos = load(str(folder / "cifar10.zip"))
        assert photos.test is not None
        train = replace(train, x=over_photos(train.x, photos.train.x))
        test = replace(test, x=over_photos(test.x, photos.test.x))
        dataset = replace(photos, classes=dataset.classes)  # of color
    return replace(dataset, train=train, test=test, skipped=()).augmented("natural", cell.flip)


def over_photos(images: np.ndarray, photos: np.ndarray) -> np.ndarray:
    """|photo − image|: gray images that invert a photo of the same size, as in MNIST-M (Ganin et al., JMLR 2016)."""
    side = images.shape[1]
    rows = np.sort(np.random.RandomState(7).permutation(len(photos))[: len(images)])
    below = np.random.RandomState(8).permutation(photos[rows, :side, :side]).astype(np.int16)
    return np.abs(below - images.astype(np.int16)).astype(np.uint8)


def shown(name: str, seed: int, folder: Path) -> SSLData:
    """A dataset with the labels that a seed shows."""
    dataset = load_cell(name, folder)
    return SSLData(dataset, balanced(dataset.train.y, CELLS[name].labels, dataset.classes, seed))


def trainer_of(row: str, seed: int, **changed: Any) -> Trainer:
    """The trainer of a row."""
    options = {**COMMON, "steps": STEPS, **(ROWS | LONG_ROWS)[row], **changed}
    supervised = options.pop("supervised", False)
    network = (NormsOnly if options.pop("norms_only", False) else Timm)(NETWORK, input_size=options.pop("side", SIDE))
    method = Supervised() if supervised else FixMatch()
    options |= {"lazy": not supervised, "eval_every": options["steps"], "seed": seed}
    return Trainer(network, method, **options)


def handed_out(data: SSLData, seed: int) -> Run:
    """What a user's command hands out, with its confidence before and after calibration."""
    summary = vcc_infuse.train(
        data, preset="finetune", seed=seed, cross_fit=True, precision="fp32", device="cpu", progress=False
    ).summary
    return {key: summary[key] for key in KEPT_HANDED}


def finetuned(data: SSLData, row: str, seed: int) -> Run:
    """The errors of a row."""
    summary = trainer_of(row, seed).fit(data)
    return {key: summary[key] for key in KEPT if key in summary}


def search(data: SSLData, seed: int) -> Run:
    """The row whose rate does best on a third of the labels, after a few steps on the others."""
    split = hold_out(data.split, data.dataset.train.y, 1 / 3, data.dataset.classes)
    blind = SSLData(replace(data.dataset, test=None), replace(split, held_out=split.held_out[:0]))
    x, y = (values[split.held_out] for values in (data.dataset.train.x, data.dataset.train.y))
    errors = []
    for row in RATES:
        trainer = trainer_of(row, seed, supervised=True, steps=SEARCH_STEPS)
        trainer.fit(blind)
        errors.append(float((trainer.predictor().predict(x).labels.cpu().numpy() != y).mean()))
    return {"rate": RATES[int(np.argmin(errors))], "hidden_errors": errors, "hidden": len(y)}


@lru_cache(maxsize=1)
def embedded(dataset: Dataset, cache: str) -> tuple[SSLData, float]:
    """The plain views at the native size, and their CPU seconds, those of the test images included."""
    began = time.process_time()
    data = SSLData(dataset, balanced(dataset.train.y, len(dataset.classes), dataset.classes, 0))
    bank = open_bank(
        data, make_encoder(Timm(NETWORK, input_size=224), dataset.shape)[0], BankConfig(), cache=cache, device="cpu"
    )
    bank.embed_plain(progress=False)
    return replace(data, dataset=bank.dataset()), time.process_time() - began


def frozen(data: SSLData, seed: int, cache: str) -> Run:
    """The default method on plain views that were embedded once, and what it hands out."""
    bank, embedding = embedded(data.dataset, cache)
    began = time.process_time()
    data = SSLData(bank.dataset, data.split)
    summary = vcc_infuse.train(data, preset="frozen", seed=seed, device="cpu", progress=False).summary
    kept = {key: summary[key] for key in KEPT if key in summary}
    return kept | {"seconds_cpu": embedding + time.process_time() - began}


def compared(data: SSLData, seed: int, cache: str) -> Run:
    """What `auto` finds on labels kept aside, from which it recommends."""
    bank, _ = embedded(data.dataset, cache)
    began = time.process_time()
    comparison = compare_finetuning(SSLData(bank.dataset, data.split), TrainConfig(device="cpu", seed=seed))
    assert comparison is not None
    return comparison._asdict() | {"seconds_cpu": time.process_time() - began}


def error_of(runs: Sequence[Run], job: Job) -> float:
    """What a finished run measured; not a number if there is none."""
    return next((run["error"] for run in runs if (run["data"], run["row"], run["seed"]) == job), np.nan)


def measured(runs: Sequence[Run]) -> dict[tuple[str, str], dict[int, tuple[float, float]]]:
    """Error and CPU seconds by dataset and row, then by seed; with the probes, and what a search led to."""
    found: dict[tuple[str, str], dict[int, tuple[float, float]]] = defaultdict(dict)
    seconds = {(run["data"], run["row"], run["seed"]): run["seconds_cpu"] for run in runs}
    for run in runs:
        name, row, seed = run["data"], run["row"], run["seed"]
        if row == SEARCH and (name, run["rate"], seed) in seconds:
            job = (name, run["rate"], seed)
            found[name, row][seed] = (error_of(runs, job), run["seconds_cpu"] + seconds[job])
        if "error" in run:
            found[name, row][seed] = (run["error"], run["seconds_cpu"])
        if row == NATIVE:
            found[name, NATIVE_PROBE][seed] = (run["error_probe"], run["seconds_cpu"])
        if row == BASE:
            found[name, PROBE][seed] = (run["error_probe"], np.nan)
    return found


def page(runs: Sequence[Run], seeds: int) -> str:
    """The Markdown page of all finished runs."""
    command = f"python -m benchmarks finetune --report --seeds {seeds} --out results/finetune"
    photos = "Digits (MNIST) and clothes (Fashion-MNIST) invert a photo of CIFAR-10 that lies below: |photo − image|."
    chosen = [PROBE, *ROWS, SEARCH, *LONG_ROWS, NATIVE_PROBE, NATIVE]
    reported = [NATIVE, NATIVE_PROBE, *REPORTED_ROWS]
    left = len(set(jobs(runs, seeds)) - {(run["data"], run["row"], run["seed"]) for run in runs})
    lines = [
        f"# Fine-tuning {NETWORK} where frozen features are weak",
        "",
        f"    VCC_INFUSE_DATA=… OMP_NUM_THREADS=1 {command}",
        "",
        f"FixMatch at {SIDE} px for {STEPS} steps with 3 unlabeled images per labeled one and the other options of the "
        "preset `finetune`, unless a row says otherwise. A seed is a draw of the labels. Error in per cent on "
        f"{TESTS:,} test images of a run itself, without a choice between it and its probe; of frozen features what "
        "the default method hands out. Seconds of CPU, one core shared with other work, with the evaluations and for "
        "frozen features the embedding. ± is the standard deviation over seeds; a figure without it is of one run. "
        f"{len(runs)} runs are finished, {left} are missing.",
        "",
        "Rows and the rule of the second seed were fixed before the runs, but for the rows below “96 px, 60 steps”: "
        "they were added when seed 0 of the others was known.",
        "",
        "## Where the recipe is chosen",
        "",
        f"By the test error. Every row has seed 0; the first, the search and the {FINALISTS} with the lowest mean "
        "also have seed 1; the longest have one run. The search compares the three rates of FixMatch, "
        f"{SEARCH_STEPS} steps on two thirds of the labels each.",
        "",
        *choosing_table(measured(runs), chosen),
        "## Where it is reported",
        "",
        f"{photos} Differences are paired: same labels, row minus “{NATIVE}”.",
        "",
        *reported_table(measured(runs), reported),
        "## What is handed out",
        "",
        "The command with `--preset finetune`, cross-validated on a third of the labels: error of what is handed out "
        "and of the run itself, and ECE of the softmax and of the calibrated confidence.",
        "",
        *handed_table(runs),
        "## What `auto` compares",
        "",
        "Error on labels kept aside, from which `auto` recommends what errs less, beside the errors on test images of "
        "default runs. Before seed 0 of this table was known the rule asked for a difference of ten points: it was "
        "changed after seeing these sets, so the table is no test of it.",
        "",
        *auto_table(runs),
    ]
    return "\n".join(lines)


Measured = Mapping[tuple[str, str], Mapping[int, tuple[float, float]]]


def choosing_table(found: Measured, rows: Sequence[str]) -> list[str]:
    """Each seed's error, and the means over both datasets."""
    heads = [f"{name}, {cell.labels} labels | s" for name, cell in CHOOSING.items()]
    lines = [f"| | {' | '.join(heads)} | mean, seed 0 | mean, both seeds |", "|---" * (3 + 2 * len(CHOOSING)) + "|"]
    for row in rows:
        cells = [found.get((name, row), {}) for name in CHOOSING]
        texts = [f"{by_seed_text(cell)} | {seconds_text(cell)}" for cell in cells]
        lines.append(f"| {row} | {' | '.join(texts)} | {mean_of(cells, (0,))} | {mean_of(cells, (0, 1))} |")
    return [*lines, ""]


def by_seed_text(cell: Mapping[int, tuple[float, float]]) -> str:
    """The errors in the order of the seeds."""
    return ", ".join(f"{100 * cell[seed][0]:.1f}" for seed in sorted(cell))


def seconds_text(cell: Mapping[int, tuple[float, float]]) -> str:
    """The mean of the seconds that are known."""
    known = [seconds for _, seconds in cell.values() if not np.isnan(seconds)]
    return f"{np.mean(known):.0f}" if known else ""


def mean_of(cells: Sequence[Mapping[int, tuple[float, float]]], seeds: Sequence[int]) -> str:
    """The mean over datasets and seeds, if none is missing."""
    if any(seed not in cell for cell in cells for seed in seeds):
        return ""
    return f"{100 * np.mean([cell[seed][0] for cell in cells for seed in seeds]):.1f}"


def reported_table(found: Measured, rows: Sequence[str]) -> list[str]:
    """Mean and standard deviation, seconds, and the paired difference to the recipe."""
    heads = [f"{name}, {cell.labels} labels | difference | s" for name, cell in REPORTED.items()]
    lines = [f"| | {' | '.join(heads)} |", "|---" * (1 + 3 * len(REPORTED)) + "|"]
    for row in rows:
        texts = []
        for name in REPORTED:
            cell, base = (found.get((name, key), {}) for key in (row, NATIVE))
            errors = [error for error, _ in cell.values()]
            gaps = [cell[seed][0] - base[seed][0] for seed in cell if seed in base]
            apart = "" if row == NATIVE else spread(gaps, "+")
            texts.append(f"{spread(errors)} | {apart} | {seconds_text(cell)}")
        lines.append(f"| {row} | {' | '.join(texts)} |")
    return [*lines, ""]


def handed_table(runs: Sequence[Run]) -> list[str]:
    """Every cross-validated run."""
    lines = ["| | seed | handed out | error | run itself | probe | ECE | calibrated |", "|---" * 8 + "|"]
    for run in (run for run in runs if run["row"] == HANDED):
        errors = " | ".join(f"{100 * run[key]:.1f}" for key in ("error", "error_method", "error_probe"))
        eces = f"{run['ece']:.3f} | {run['ece_calibrated']:.3f}"
        lines.append(f"| {run['data']} | {run['seed']} | {run['handed_out']} | {errors} | {eces} |")
    return [*lines, ""]


def spread(values: Sequence[float], sign: str = "") -> str:
    """Mean ± standard deviation in per cent."""
    if len(values) < 2:
        return "".join(f"{100 * value:{sign}.1f}" for value in values)
    return f"{100 * np.mean(values):{sign}.1f} ± {100 * np.std(values, ddof=1):.1f}"


def auto_table(runs: Sequence[Run]) -> list[str]:
    """What the labels kept aside say, and what the test images say."""
    lines = [
        "| | seed | labels | frozen | fine-tuned | recommended | test: frozen | test: fine-tuned |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for run in (run for run in runs if run["row"] == AUTO):
        name, seed = run["data"], run["seed"]
        comparison = Comparison(*(run[field] for field in Comparison._fields))
        advice = "finetune" if comparison.favors_finetuning else "frozen"
        tests = [error_of(runs, (name, row, seed)) for row in (NATIVE, THE_PRESET)]
        facts = f"{run['labels']} | {100 * comparison.frozen:.1f} | {100 * comparison.finetuned:.1f} | {advice}"
        lines.append(f"| {name} | {seed} | {facts} | {' | '.join(f'{100 * error:.1f}' for error in tests)} |")
    return [*lines, ""]
