"""Where the time of a step of WRN-28-2 goes, in the reference and in ours, and how close it is to what the CPU can do.

    OMP_NUM_THREADS=1 python benchmarks/profile_step.py --out results/bench/profile

writes profile.json and profile.md. The rate of a large matrix product, taken between the steps, stands for the CPU's.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.reference import reference_step
from benchmarks.workloads import cases, our_step
from vcc_infuse.utils.allocator import keep_freed_memory
from vcc_infuse.utils.io import write_json, write_text

KINDS = {
    "convolution, forward": ("mkldnn_convolution",),
    "convolution, backward": ("convolution_backward",),
    "BatchNorm": ("native_batch_norm", "native_batch_norm_backward", "_native_batch_norm_legit"),
    "activation": ("leaky_relu", "leaky_relu_", "leaky_relu_backward"),
}


def kinds(step, number):
    """Milliseconds of one step by kind of operation, and of everything else."""
    began = time.process_time()
    with profile(activities=[ProfilerActivity.CPU]) as found:
        step(number)
    whole = 1e3 * (time.process_time() - began)
    own = {event.key.removeprefix("aten::"): event.self_cpu_time_total / 1e3 for event in found.key_averages()}
    parts = {kind: sum(own.get(name, 0.0) for name in names) for kind, names in KINDS.items()}
    return {**parts, "everything else": max(0.0, whole - sum(parts.values()))}


def operations(step, number):
    """Floating-point operations of the convolutions of one step, 10⁹."""
    with FlopCounterMode(display=False) as counter:
        step(number)
    found = counter.get_flop_counts()["Global"]
    return sum(count for name, count in found.items() if "convolution" in str(name)) / 1e9


def product(size=1024):
    """10⁹ operations per second of a matrix product in single precision."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    began = time.process_time()
    for _ in range(4):
        a @ b
    return 4 * 2 * size**3 / 1e9 / (time.process_time() - began)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("results/bench/profile"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    case = cases(options.batch_size, 32)[0]
    data = case.data()
    steps = {"reference": reference_step(case, data)(), "ours": our_step(case, data)()}
    work = {name: operations(step, 0) for name, step in steps.items()}
    taken, peak = {name: [] for name in steps}, []
    for number in range(1, 1 + options.rounds):
        for name, step in steps.items():
            taken[name].append(kinds(step, number))
            peak.append(product())
    medians = {
        name: {kind: float(np.median([t[kind] for t in each])) for kind in each[0]} for name, each in taken.items()
    }
    write_json(options.out.with_suffix(".json"), {"gflop": work, "product_gflops": peak, "milliseconds": taken})
    write_text(options.out.with_suffix(".md"), page(case.name, medians, work, float(np.median(peak)), options))
    print(options.out.with_suffix(".md").read_text())


def page(title, medians, work, peak, options):
    lines = [
        "# Where the time of a step goes",
        "",
        f"    OMP_NUM_THREADS=1 python benchmarks/profile_step.py --batch_size {options.batch_size} "
        f"--rounds {options.rounds} --out {options.out}",
        "",
        f"{title}, one thread, medians of {options.rounds} rounds in turns.",
        "",
        f"| ms | {' | '.join(medians)} | reference ÷ ours |",
        "|---|---|---|---|",
    ]
    ours, reference = medians["ours"], medians["reference"]
    for kind in ours:
        lines.append(f"| {kind} | {reference[kind]:.0f} | {ours[kind]:.0f} | {reference[kind] / ours[kind]:.2f} |")
    whole = {name: sum(each.values()) for name, each in medians.items()}
    lines.append(
        f"| together | {whole['reference']:.0f} | {whole['ours']:.0f} | {whole['reference'] / whole['ours']:.2f} |"
    )
    busy = {name: sum(ms for kind, ms in each.items() if "convolution" in kind) for name, each in medians.items()}
    rates = {name: 1e3 * work[name] / busy[name] for name in busy}
    best = 1e3 * work["ours"] / peak + whole["ours"] - busy["ours"]
    lines += [
        "",
        f"Convolutions: {work['reference']:.0f} · 10⁹ operations in the reference, {work['ours']:.0f} · 10⁹ in ours "
        f"(ratio {work['reference'] / work['ours']:.2f}), at {rates['reference']:.0f} and {rates['ours']:.0f} · 10⁹ "
        f"per second. A product of two matrices of 1,024 × 1,024 reaches {peak:.0f} · 10⁹ between the steps; at that "
        f"rate a step of ours would take {best:.0f} ms.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
