"""ONNX Runtime against PyTorch as the engine of a frozen network: the bare forward, and whole embedding in 7 views.

    OMP_NUM_THREADS=1 python -m benchmarks engines --out results/engines

Variants take turns; the figures are medians of the ratios within a round, by CPU time and by wall clock.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vcc_infuse import Timm
from vcc_infuse.augment.views import ImageViews
from vcc_infuse.bank.bank import BankConfig
from vcc_infuse.bank.embed import make_encoder
from vcc_infuse.bank.encoder import ForwardOptions, FrozenNetwork, features
from vcc_infuse.bank.onnx_engine import BATCH, onnx_encoder
from vcc_infuse.cli.parser import Parser, integer
from vcc_infuse.utils.io import write_json, write_text

CPU = torch.device("cpu")
OPTIONS = {
    "PyTorch": ForwardOptions(BATCH),
    "PyTorch, bf16": ForwardOptions(BATCH, bf16=True),
    "ONNX Runtime": ForwardOptions(BATCH, channels_last=False, engine="onnx"),
}
Work = Callable[[], object]


def in_turns(works: dict[str, Work], rounds: int) -> dict[str, np.ndarray]:
    """Seconds `(rounds, 2)` of each work by CPU time and by wall clock; a first round warms up."""
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in works}
    for number in range(rounds + 1):
        for name, work in works.items():
            cpu = time.process_time()
            wall = time.perf_counter()
            work()
            if number:
                seconds[name].append((time.process_time() - cpu, time.perf_counter() - wall))
    return {name: np.array(times) for name, times in seconds.items()}


def compare(network: str, weights: str, side: int, size: int, rounds: int, cache: str) -> list[dict[str, Any]]:
    """Both works with every engine on images of `side` pixels, resized to `size` for the network."""
    encoder = make_encoder(Timm(network, weights, size), (side, side, 3))[0].eval()
    fast = onnx_encoder(encoder, cache=cache)
    assert fast is not None
    networks = {name: fast if options.engine == "onnx" else encoder for name, options in OPTIONS.items()}
    ready = torch.randn(2 * BATCH, 3, size, size)
    raw = np.random.default_rng(0).integers(0, 256, (2 * BATCH, side, side, 3), np.uint8)
    views = ImageViews((0.5,) * 3, (0.5,) * 3)

    def forward(name: str) -> object:
        return features(networks[name].to(memory_format=OPTIONS[name].memory_format), ready, OPTIONS[name])

    def embed(name: str) -> object:
        return FrozenNetwork(networks[name], views, OPTIONS[name]).embed(CPU, raw, BankConfig().names, (0,), None)

    rows = []
    for title, work, count in (("forward", forward, 1), ("embedding, 7 views", embed, len(BankConfig().names))):
        times = in_turns({name: lambda name=name, work=work: work(name) for name in OPTIONS}, rounds)  # type: ignore[misc]
        for name, seconds in times.items():
            ratio = np.median(times["PyTorch"] / seconds, 0)
            milliseconds = 1000 * float(np.median(seconds[:, 0])) / (count * len(raw))
            row = {"work": title, "image": side, "size": size, "engine": name, "milliseconds": milliseconds}
            rows.append({**row, "ratio_cpu": float(ratio[0]), "ratio_wall": float(ratio[1])})
    return rows


def page(rows: Sequence[dict[str, Any]], network: str, command: str) -> str:
    """The Markdown page."""
    lines = [
        f"# Engines of a frozen network: {network}",
        "",
        f"    {command}",
        "",
        "Times as fast as PyTorch in float32 with channels_last, medians of interleaved rounds on a shared machine; "
        "CPU milliseconds per view.",
        "",
        "| work | images | network's size | engine | ms per view | ratio, CPU time | ratio, wall clock |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['work']} | {row['image']} px | {row['size']} px | {row['engine']} | {row['milliseconds']:.1f} "
        f"| {row['ratio_cpu']:.2f} | {row['ratio_wall']:.2f} |"
        for row in rows
    ]
    lines += ["", "int8 and OpenVINO: [quantized.md](quantized.md)."]
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str]) -> None:
    """Compare, and write the page."""
    parser = Parser("python -m benchmarks engines", "Compare ONNX Runtime with PyTorch on a frozen network.")
    parser.add_argument("--model", default="tf_efficientnet_lite0", help="timm's name of the network (%(default)s)")
    parser.add_argument("--weights", default="auto", help="its weights (auto)")
    sizes = ["96:96", "160:160", "32:224", "224:224"]
    parser.add_argument("--sizes", nargs="+", default=sizes, help="sides of the images and of the network's input")
    parser.add_argument("--rounds", type=integer(), default=5, help="turns of each (5)")
    parser.add_argument("--out", help="writes OUT.json and OUT.md")
    options = parser.read(argv)
    rows = []
    with tempfile.TemporaryDirectory() as cache:
        for pair in options.sizes:
            side, size = map(int, pair.split(":"))
            rows += compare(options.model, options.weights, side, size, options.rounds, cache)
    threads = os.environ.get("OMP_NUM_THREADS", "")
    text = page(rows, options.model, f"OMP_NUM_THREADS={threads} python -m benchmarks engines {' '.join(argv)}")
    print(text)
    if options.out:
        write_json(Path(f"{options.out}.json"), {"rows": rows})
        write_text(Path(f"{options.out}.md"), text)
