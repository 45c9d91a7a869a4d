"""Where the time of a step of WRN-28-2 goes, in the reference and in ours, and how close it is to what the CPU can do.

    OMP_NUM_THREADS=1 python -m benchmarks profile_step --out results/bench/profile

writes profile.json and profile.md. The rate of a large matrix product, taken between the steps, stands for the CPU's.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from vcc_infuse.cli.parser import Parser, integer
from vcc_infuse.utils.io import write_json, write_text
from vcc_infuse.utils.memory import keep_freed_memory

from .reference import reference_step
from .turns import Work
from .workloads import cases, our_step

KINDS = {
    "convolution, forward": ("mkldnn_convolution",),
    "convolution, backward": ("convolution_backward",),
    "BatchNorm": ("native_batch_norm", "native_batch_norm_backward", "_native_batch_norm_legit"),
    "activation": ("leaky_relu", "leaky_relu_", "leaky_relu_backward"),
}


def main(argv: Sequence[str]) -> None:
    """Profile both steps in turns and write the page."""
    parser = Parser("python -m benchmarks profile_step", "Measure where the time of a step of WRN-28-2 goes.")
    parser.add_argument("--batch_size", type=integer(), default=16, help="labeled images per step (16)")
    parser.add_argument("--rounds", type=integer(), default=5, help="profiled steps of each (5)")
    parser.add_argument("--out", type=Path, default=Path("results/bench/profile"), help="writes OUT.json and OUT.md")
    options = parser.read(argv)
    torch.set_num_threads(1)
    keep_freed_memory()
    case = cases(options.batch_size, 32)[0]
    data = case.data()
    steps = {"reference": reference_step(case, data)(), "ours": our_step(case, data)()}
    work = {name: operations(step, 0) for name, step in steps.items()}
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in steps}
    peak: list[float] = []
    for number in range(1, 1 + options.rounds):
        for name, step in steps.items():
            taken[name].append(milliseconds(step, number))
            peak.append(product_rate())
    medians = {
        name: {kind: float(np.median([times[kind] for times in rounds])) for kind in rounds[0]}
        for name, rounds in taken.items()
    }
    write_json(options.out.with_suffix(".json"), {"gflop": work, "product_gflops": peak, "milliseconds": taken})
    text = page(case.name, medians, work, float(np.median(peak)), options)
    write_text(options.out.with_suffix(".md"), text)
    print(text)


def milliseconds(step: Work, number: int) -> dict[str, float]:
    """Milliseconds of one step by kind of operation, and of everything else."""
    began = time.process_time()
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        step(number)
    whole = 1e3 * (time.process_time() - began)
    times = {event.key.removeprefix("aten::"): event.self_cpu_time_total / 1e3 for event in profiled.key_averages()}
    parts = {kind: sum(times.get(name, 0.0) for name in names) for kind, names in KINDS.items()}
    return {**parts, "everything else": max(0.0, whole - sum(parts.values()))}


def operations(step: Work, number: int) -> float:
    """Floating-point operations of the convolutions of one step, 10⁹."""
    with FlopCounterMode(display=False) as counter:
        step(number)
    counts = counter.get_flop_counts()["Global"]
    return float(sum(count for name, count in counts.items() if "convolution" in str(name))) / 1e9


def product_rate(size: int = 1024) -> float:
    """10⁹ operations per second of a matrix product in single precision."""
    left = torch.randn(size, size)
    right = torch.randn(size, size)
    began = time.process_time()
    for _ in range(4):
        left @ right
    return 4 * 2 * size**3 / 1e9 / (time.process_time() - began)


def page(
    title: str, medians: dict[str, dict[str, float]], work: dict[str, float], peak: float, options: Namespace
) -> str:
    """The Markdown page; `work` is in 10⁹ operations, `peak` in 10⁹ per second."""
    ours = medians["ours"]
    reference = medians["reference"]
    whole = {name: sum(times.values()) for name, times in medians.items()}
    busy = {name: sum(ms for kind, ms in times.items() if "convolution" in kind) for name, times in medians.items()}
    rates = {name: 1e3 * work[name] / busy[name] for name in busy}
    rows = [f"| {kind} | {reference[kind]:.0f} | {ms:.0f} | {reference[kind] / ms:.2f} |" for kind, ms in ours.items()]
    best = 1e3 * work["ours"] / peak + whole["ours"] - busy["ours"]
    lines = [
        "# Where the time of a step goes",
        "",
        f"    OMP_NUM_THREADS=1 python -m benchmarks profile_step --batch_size {options.batch_size} "
        f"--rounds {options.rounds} --out {options.out}",
        "",
        f"{title}, one thread, medians of {options.rounds} rounds in turns.",
        "",
        f"| ms | {' | '.join(medians)} | reference ÷ ours |",
        "|---|---|---|---|",
        *rows,
        f"| together | {whole['reference']:.0f} | {whole['ours']:.0f} | {whole['reference'] / whole['ours']:.2f} |",
        "",
        f"Convolutions: {work['reference']:.0f} · 10⁹ operations in the reference, {work['ours']:.0f} · 10⁹ in ours "
        f"(ratio {work['reference'] / work['ours']:.2f}), at {rates['reference']:.0f} and {rates['ours']:.0f} · 10⁹ "
        f"per second. A product of two matrices of 1,024 × 1,024 reaches {peak:.0f} · 10⁹ between the steps; at that "
        f"rate a step of ours would take {best:.0f} ms.",
        "",
    ]
    return "\n".join(lines)
