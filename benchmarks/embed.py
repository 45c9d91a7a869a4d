"""Banks: embedding against the bare forward of the network, memory for many images, and what lazy banks save.

    OMP_NUM_THREADS=1 python -m benchmarks embed --out results/embed

writes embed.json and embed.md. The bare forward is the same network in eval mode on ready, normalized batches of the
same size and layout, without augmentation, conversion and files. Both take turns; numbers are medians of the ratios.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from vcc_infuse import INFUSE, FixMatch, Identity, SSLData, Timm, Trainer
from vcc_infuse.augment.views import ImageViews
from vcc_infuse.bank import storage
from vcc_infuse.bank.bank import Bank, BankConfig
from vcc_infuse.bank.embed import embed_data, make_encoder, open_bank
from vcc_infuse.bank.encoder import fastest_options
from vcc_infuse.cli.parser import Parser, integer
from vcc_infuse.data.dataset import Dataset, Examples
from vcc_infuse.data.split import balanced
from vcc_infuse.utils.io import write_json, write_text

CHECKOUT = Path(__file__).parents[1]
Figures = dict[str, Any]


def noise(count: int, side: int) -> SSLData:
    """Random images of four classes, 40 of them labeled."""
    x = np.random.default_rng(0).integers(0, 256, (count, side, side, 3), dtype=np.uint8)
    y = np.arange(count) % 4
    dataset = Dataset(Examples(x, y), None, tuple("abcd"), (0.5,) * 3, (0.3,) * 3)
    return SSLData(dataset, balanced(y, 40, 4, 0))


def rate(name: str, weights: str, side: int, size: int, rounds: int, cache: str, images: int = 64) -> Figures:
    """Views per second of `Bank.embed` and of the bare forward, alternating, by wall clock and by CPU time."""
    storage.CHUNK = images
    encoder, _ = make_encoder(Timm(name, weights, size), (side, side, 3))
    trial = open_bank(noise(images, side), encoder, cache=cache, device="cpu")
    forward = fastest_options(trial.encoder, trial.plain_batch(images))
    bank = open_bank(noise(images, side), encoder, BankConfig(batch_size=forward.batch_size), cache=cache, device="cpu")
    job = next(bank.jobs())
    views = len(bank.config.names)
    network = cast(torch.nn.Module, bank.encoder.net)  # without the resizing of its input
    ready = torch.randn(images, 3, size, size).contiguous(memory_format=bank.network.options.memory_format)

    @torch.no_grad()
    def bare() -> None:
        for _ in range(views):
            for piece in torch.split(ready, forward.batch_size):
                network(piece)

    works: dict[str, Callable[[], object]] = {
        "embed": lambda: bank.stored[job.part].store(job.rows, bank.embed(job)[1]),
        "bare": bare,
    }
    seconds: dict[str, list[tuple[float, float]]] = {key: [] for key in works}
    for number in range(rounds + 1):
        for key, work in works.items():
            wall = time.perf_counter()
            cpu = time.process_time()
            work()
            if number:
                seconds[key].append((time.perf_counter() - wall, time.process_time() - cpu))
    ratios = np.array(seconds["bare"]) / np.array(seconds["embed"])
    count = views * images
    rates = {f"{key}_per_second": count / statistics.median(wall for wall, _ in seconds[key]) for key in works}
    shares = {"ratio": float(np.median(ratios[:, 0])), "ratio_cpu_time": float(np.median(ratios[:, 1]))}
    return {"network": name, "image": side, "input_size": size, "batch_size": forward.batch_size,
            "channels_last": forward.channels_last, **rates, **shares}  # fmt: skip


class OnDemand:
    """Images that are made when they are asked for."""

    def __init__(self, count: int, side: int = 4) -> None:
        self.shape = (count, side, side, 3)
        self.dtype = np.dtype(np.uint8)
        self.ndim = 4
        self.size = count * side * side * 3

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        first = (rows * 37 % 251).astype(np.uint8)
        steps = np.arange(self.size // self.shape[0]).astype(np.uint8)
        return (first[:, None] + steps).reshape(-1, *self.shape[1:])


class Mean(torch.nn.Module):
    """The trivial network: the mean color."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, 3, height, width) to (batch, 3)."""
        return x.mean((2, 3))


def peak() -> float:
    """Megabytes; not ru_maxrss, which a child inherits from its parent."""
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) / 1024


def memory(count: int) -> Figures:
    """Peak memory of a bank of so many images under a trivial network, in this process; labels not counted."""
    storage.CHUNK = 4096
    y = np.arange(count) % 2
    dataset = Dataset(Examples(cast(np.ndarray, OnDemand(count)), y), None, ("a", "b"), (0.5,) * 3, (0.3,) * 3)
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of making and checking the labels
    before = peak()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as cache:
        views = ImageViews(dataset.mean, dataset.std)
        bank = Bank(dataset, Mean(), views, BankConfig(1, 1, batch_size=4096), cache=cache).build(progress=False)
        assert bank.missing() == 0
    growth = peak() - before
    return {"images": count, "seconds": time.perf_counter() - began, "growth_mb": growth,
            "images_mb": count * 48 / 2**20, "features_mb": count * 18 / 2**20}  # fmt: skip


def memory_in_process(count: int) -> Figures:
    """The same in a process of its own."""
    command = [sys.executable, "-m", "benchmarks", "embed", f"--memory={count}"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, cwd=CHECKOUT).stdout
    figures: Figures = json.loads(printed)
    return figures


def lazy(name: str, weights: str, cache: str, keep: float = 0.25, images: int = 512) -> list[Figures]:
    """Views and seconds of embedding for a run with INFUSE, with all views first and with those of kept images."""
    storage.CHUNK = 256
    rows = []
    data = noise(images, 32)
    for late, every in ((False, 50), (True, 50), (True, 1000)):
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            config = BankConfig(lazy=late, batch_size=16)
            banked = embed_data(data, Timm(name, weights, 96), config, cache=folder, device="cpu", progress=False)
            bank = banked.dataset.bank
            assert bank is not None
            selector = INFUSE(keep=keep, every=every)
            trainer = Trainer(Identity(), FixMatch(), selector=selector, steps=800, batch_size=8, progress=False)
            trainer.fit(banked)
            marks = np.load(bank.folder / "train-marks.npy")
            further = (storage.written_slots(marks) == len(config.names)).sum()
            views = images * (1 if late else 7) + (int(further) * 6 if late else 0)
            rows.append({"bank": "lazy" if late else "whole", "selections": 200 // every or 1, "images": images,
                         "keep": keep, "images_with_all_views": int(further), "views": views,
                         "seconds": bank.seconds})  # fmt: skip
    return rows


def table(figures: Figures, command: str) -> str:
    """The Markdown page."""
    lines = [f"Embedding on {figures['threads']} thread(s) of a shared machine: only ratios mean something.\n",
             f"    {command}\n",
             "| network | images | network's size | batch | channels_last | bare forward, views/s | bank, views/s "
             "| ratio | ratio by CPU time |", "|---|---|---|---|---|---|---|---|---|"]  # fmt: skip
    lines += [
        f"| {r['network']} | {r['image']} px | {r['input_size']} px | {r['batch_size']} | {r['channels_last']} "
        f"| {r['bare_per_second']:.0f} | {r['embed_per_second']:.0f} | **{r['ratio']:.2f}** "
        f"| {r['ratio_cpu_time']:.2f} |"
        for r in figures["rates"]
    ]
    lines += ["\nBatch size and layout were chosen by measurement. The next view is made by a second thread, so "
              "the ratio by wall clock needs a free moment of another core; the ratio by CPU time does not.\n",
              "Memory with a trivial network and images made on demand, 3 views of 3 features (labels not counted):\n",
              "| images | seconds | growth of peak memory, MB | all images, MB | all features, MB |",
              "|---|---|---|---|---|"]  # fmt: skip
    lines += [
        f"| {r['images']:,} | {r['seconds']:.0f} | {r['growth_mb']:.0f} | {r['images_mb']:.0f} "
        f"| {r['features_mb']:.0f} |"
        for r in figures["memory"]
    ]
    lines += ["\nA run with INFUSE on a whole bank and on a lazy one (1 plain, 2 weak, 4 strong views):\n",
              "| bank | kept | selections | images | of them with all views | views embedded | seconds "
              "| share of the views |",
              "|---|---|---|---|---|---|---|---|"]  # fmt: skip
    whole = figures["lazy"][0]["views"]
    lines += [
        f"| {r['bank']} | {r['keep']:.0%} | {r['selections']} | {r['images']} | {r['images_with_all_views']} "
        f"| {r['views']} | {r['seconds']:.1f} | {r['views'] / whole:.2f} |"
        for r in figures["lazy"]
    ]
    lines += [
        "\nThe first selection of a run is a random subset of the same size, without scores: "
        "a run with one selection never used INFUSE's scores. Seconds are wall clock under other load. A lazy "
        "bank augments whole chunks and embeds the kept rows of them, so it saves less time than views."
    ]
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str]) -> None:
    """Measure rates, memory and lazy banks, and write the page."""
    parser = Parser("python -m benchmarks embed", "Compare embedding with the bare forward of the network.")
    parser.add_argument("--model", default="tf_efficientnet_lite0", help="timm's name of the network")
    parser.add_argument("--weights", default="auto", help="its weights (auto)")
    sizes = ["32:96", "96:96", "160:160"]
    parser.add_argument("--sizes", nargs="+", default=sizes, help="sides of the images and of the network's input")
    parser.add_argument("--rounds", type=integer(), default=7, help="turns of each (7)")
    counts = [10**4, 10**6, 10**7]
    parser.add_argument("--images", type=integer(), nargs="+", default=counts, help="images whose memory is measured")
    parser.add_argument("--out", help="writes OUT.json and OUT.md")
    parser.add_argument("--memory", type=integer(), help="measure this number of images here and print it as JSON")
    options = parser.read(argv)
    if options.memory:
        print(json.dumps(memory(options.memory)))
        return
    threads = os.environ.get("OMP_NUM_THREADS", "")
    command = " ".join([f"OMP_NUM_THREADS={threads} python -m benchmarks embed", *argv])
    with tempfile.TemporaryDirectory() as cache:
        rates = []
        for pair in options.sizes:
            side, size = map(int, pair.split(":"))
            rates.append(rate(options.model, options.weights, side, size, options.rounds, cache))
        saved = lazy(options.model, options.weights, cache)
    figures = {"command": command, "threads": torch.get_num_threads(), "rates": rates, "lazy": saved,
               "memory": [memory_in_process(count) for count in options.images]}  # fmt: skip
    text = table(figures, command)
    print(text)
    if options.out:
        write_json(Path(f"{options.out}.json"), figures)
        write_text(Path(f"{options.out}.md"), text)
