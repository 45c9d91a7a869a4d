"""Does fine-tuning win where frozen features fail? A recipe is chosen on two datasets and reported on others.

VCC_INFUSE_DATA=/folder/with/zips OMP_NUM_THREADS=1 python -m benchmarks finetune --out results/finetune.md

The folder holds svhn.zip, cifar100.zip, mnist.zip and cifar10.zip (class folders under train/ and test/). Every
finished run is stored in a JSON file beside --out, so that a benchmark that was stopped continues where it was.
"""

from __future__ import annotations

import json
import tempfile
import time
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from vcc_infuse import BankConfig, FixMatch, LinearProbe, SSLData, Supervised, Timm, Trainer, embed_data
from vcc_infuse.bank.embed import head
from vcc_infuse.cli.parser import Parser, integer
from vcc_infuse.data.dataset import Dataset, Examples
from vcc_infuse.data.split import Split, balanced
from vcc_infuse.data.ssl_data import load
from vcc_infuse.training.presets import FINETUNE, FROZEN
from vcc_infuse.utils.io import write_json, write_text

from .whole import data_folder

NETWORK = "tf_efficientnet_lite0"
SIDE = 64
NATIVE = 224
TESTS = 1000
VIEWS = BankConfig(weak=1, strong=2)  # those of 1,000 images are embedded in about the time of a fine-tuned run
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
# What a method ends at by itself, without a choice between it and the probe; small images fit into memory at once.
PLAIN: dict[str, Any] = {
    **{"cross_fit": False, "micro_batch": None, "precision": "fp32", "device": "cpu", "progress": False},
}
RECIPE: dict[str, Any] = {
    name: value for name, value in FINETUNE.items() if name not in ("model", "steps", "eval_every")
}
THE_RECIPE = "the recipe (FixMatch, lr 3e-4, head_lr 3e-3)"
VARIANTS: dict[str, dict[str, Any]] = {
    THE_RECIPE: {},
    "lr 1e-4, head_lr 1e-3": {"lr": 1e-4, "head_lr": 1e-3},
    "lr 1e-3": {"lr": 1e-3},
    "the recipe, labels only (Supervised)": {"supervised": True},
    "the recipe, labels only, 30 steps": {"supervised": True, "steps": 30},
}
FROZEN_ROWS = {f"frozen at {NATIVE} px, linear probe": LinearProbe, f"frozen at {NATIVE} px, FixMatch": FixMatch}
KEPT = ("error", "error_probe", "ece", "pseudo_label_coverage", "pseudo_label_precision", "seconds_train")
Run = dict[str, Any]
Job = tuple[str, str, int]


def main(argv: Sequence[str]) -> None:
    """Run what is missing, and write the page after every run."""
    parser = Parser("python -m benchmarks finetune", "Measure fine-tuning where frozen features are weak.")
    parser.add_argument("--seeds", type=integer(), default=3, help="runs of each reported row (3)")
    parser.add_argument("--out", type=Path, default=Path("results/finetune.md"), help="the Markdown file")
    options = parser.read(argv)
    folder = data_folder()
    torch.set_num_threads(1)
    stored = options.out.with_suffix(".json")
    runs: list[Run] = json.loads(stored.read_text()) if stored.exists() else []
    done = {(run["data"], run["variant"], run["seed"]) for run in runs}
    for job in jobs(options.seeds):
        if job not in done:
            runs.append(run_one(*job, folder))
            write_json(stored, runs)
            print(runs[-1], flush=True)
            write_text(options.out, page(runs, options))
    write_text(options.out, page(runs, options))


def jobs(seeds: int) -> list[Job]:
    """One seed of every variant where the recipe is chosen; the recipe and frozen features where it is reported."""
    chosen = [(name, variant, 0) for variant in VARIANTS for name in CHOOSING]
    rows = (THE_RECIPE, *FROZEN_ROWS)
    return chosen + [(name, row, seed) for seed in range(seeds) for name in REPORTED for row in rows]


def run_one(name: str, variant: str, seed: int, folder: Path) -> Run:
    """One run."""
    if variant in FROZEN_ROWS:
        summary, seconds = frozen(name, variant, seed, folder)
    else:
        summary, seconds = finetuned(name, variant, seed, folder)
    kept = {key: summary[key] for key in KEPT if key in summary}
    return {"data": name, "variant": variant, "seed": seed, **kept, "seconds_cpu": seconds}


def load_cell(cell: Cell, folder: Path) -> Dataset:
    """A stratified part of the training set and a part of the test set, the same for every seed."""
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


def split_of(dataset: Dataset, name: str, seed: int) -> Split:
    """The labels that a seed shows."""
    return balanced(dataset.train.y, CELLS[name].labels, dataset.classes, seed)


def finetuned(name: str, variant: str, seed: int, folder: Path) -> tuple[Run, float]:
    """The recipe with one part changed, and its CPU seconds, those of two evaluations included."""
    dataset = load_cell(CELLS[name], folder)
    options = {**RECIPE, "steps": STEPS, "eval_every": STEPS, **VARIANTS[variant], **PLAIN, "seed": seed}
    supervised = options.pop("supervised", False)
    method = Supervised() if supervised else FixMatch()
    trainer = Trainer(Timm(NETWORK, input_size=SIDE), method, lazy=not supervised, **options)
    began = time.process_time()
    summary = trainer.fit(SSLData(dataset, split_of(dataset, name, seed)))
    return summary, time.process_time() - began


@cache
def embedded(name: str, folder: Path) -> tuple[SSLData, float]:
    """All views at the native size, and their CPU seconds, those of the test images included."""
    dataset = load_cell(CELLS[name], folder)
    data = SSLData(dataset, split_of(dataset, name, 0))
    began = time.process_time()
    with tempfile.TemporaryDirectory() as cache_folder:
        data = embed_data(
            data, Timm(NETWORK, input_size=NATIVE), VIEWS, cache=cache_folder, device="cpu", progress=False
        )
        train = Examples(np.array(data.dataset.train.x), data.dataset.train.y)  # the files are gone afterwards
        assert data.dataset.test is not None
        test = Examples(np.array(data.dataset.test.x), data.dataset.test.y)
    held = replace(data, dataset=replace(data.dataset, train=train, test=test, bank=None))
    return held, time.process_time() - began


def frozen(name: str, variant: str, seed: int, folder: Path) -> tuple[Run, float]:
    """A linear head on views that were embedded once at the native size."""
    data, embedding = embedded(name, folder)
    options = {key: value for key, value in FROZEN.items() if key != "model"} | PLAIN | {"seed": seed}
    trainer = Trainer(head(VIEWS), FROZEN_ROWS[variant](), **options)
    began = time.process_time()
    summary = trainer.fit(replace(data, split=split_of(data.dataset, name, seed)))
    return summary, embedding + time.process_time() - began


def page(runs: Sequence[Run], options: Namespace) -> str:
    """The Markdown page of all finished runs."""
    finished = f"{len(runs)} of {len(jobs(options.seeds))} runs are finished."
    lines = [
        f"# Fine-tuning {NETWORK} where frozen features are weak",
        "",
        f"    VCC_INFUSE_DATA=… OMP_NUM_THREADS=1 python -m benchmarks finetune --seeds {options.seeds} "
        f"--out {options.out}",
        "",
        f"The recipe is that of the preset `finetune`, {STEPS} steps at {SIDE} px. Error in per cent on {TESTS:,} test "
        f"images. CPU seconds include evaluations, and for frozen features the embedding, on one core. {finished}",
        "",
        "## Where the recipe was chosen",
        "",
        "One seed, judged by the test error: these rows are no independent evidence.",
        "",
        *table(runs, CHOOSING, tuple(VARIANTS)),
        "## Where it is reported",
        "",
        "No option was changed after these were seen. Digits (MNIST) and clothes (Fashion-MNIST) invert a photo of "
        "CIFAR-10 that lies below them: |photo − image|.",
        "",
        *table(runs, REPORTED, (THE_RECIPE, *FROZEN_ROWS)),
    ]
    return "\n".join(lines)


def table(runs: Sequence[Run], cells: dict[str, Cell], rows: Sequence[str]) -> list[str]:
    """One row per variant, with the probe at the size of fine-tuning first."""
    heads = [f"{name}, {cell.labels} labels | CPU s" for name, cell in cells.items()]
    probes = {name: {run["seed"]: run["error_probe"] for run in runs if starts_at_probe(run, name)} for name in cells}
    first = [f"{errors(list(by_seed.values()))} |" for by_seed in probes.values()]
    lines = [f"| | {' | '.join(heads)} |", "|---" * (1 + 2 * len(cells)) + "|"]
    lines.append(f"| linear probe at {SIDE} px, where the recipe starts | {' | '.join(first)} |")
    for variant in rows:
        chosen = {name: [run for run in runs if (run["data"], run["variant"]) == (name, variant)] for name in cells}
        lines.append(f"| {variant} | {' | '.join(cell_text(found) for found in chosen.values())} |")
    return [*lines, ""]


def starts_at_probe(run: Run, name: str) -> bool:
    """Whether a run tells the error of the probe at the size of fine-tuning."""
    return run["data"] == name and run["variant"] not in FROZEN_ROWS and "error_probe" in run


def cell_text(runs: Sequence[Run]) -> str:
    """Errors and CPU seconds of the seeds of a row."""
    if not runs:
        return "| "
    return f"{errors([run['error'] for run in runs])} | {np.mean([run['seconds_cpu'] for run in runs]):.0f}"


def errors(values: Sequence[float]) -> str:
    """The mean in per cent, and each value if there are several."""
    if not values:
        return ""
    by_seed = f" ({' '.join(f'{100 * value:.1f}' for value in values)})" if len(values) > 1 else ""
    return f"{100 * np.mean(values):.1f}{by_seed}"
