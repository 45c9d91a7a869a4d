"""Whether a step got slower: a few comparisons again, held against those committed for this kind of processor.

    OMP_NUM_THREADS=1 python -m benchmarks check             # exit status 1 if a step got slower
    OMP_NUM_THREADS=1 python -m benchmarks check --record    # commit what this processor measures

Only ratios are compared, of variants that take turns. One counts as worse if three quarters of its rounds are more than
1.5 times the committed median, and are so again in two more measurements: a busy machine is to fail nothing. What is
slow depends on the processor (one with matrix units halves the ratio of VCC), so every kind has ratios of its own. On a
kind without any, each ratio is compared with the slowest of all kinds, so that only what is slow anywhere fails.
`--precision fp32` leaves out bf16, and so stands in for an older processor, together with
`ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vcc_infuse.cli.parser import Parser, integer, one_of
from vcc_infuse.errors import UserError
from vcc_infuse.utils.io import read_json, write_json

from .page import Part, machine, summary
from .steps import measure_steps

ALLOWED = 1.5
NETWORKS = ("SmallConv", "head")
NOT_OURS = ("plain loop", "plain loop, VCC")
AGAIN = 2  # times that what seems worse is measured again
Ratios = dict[str, list[float]]
"""Quartiles of the ratio of a variant to its base, by comparison and variant."""


def main(argv: Sequence[str]) -> int:
    """Measure, print one line per ratio, and return the exit status."""
    parser = Parser("python -m benchmarks check", "Measure steps again and compare them with the committed ratios.")
    parser.add_argument("--rounds", type=integer(), default=5, help="turns of each variant (5)")
    parser.add_argument("--committed", default="results/bench/check.json", help="what to compare with (%(default)s)")
    parser.add_argument("--record", action="store_true", help="write the ratios of this kind of processor there")
    parser.add_argument("--precision", default="auto", **one_of("auto", "fp32"), help="fp32: leave out bf16 (auto)")
    options = parser.read(argv)
    path = Path(options.committed)
    kind = kind_of(options.precision)
    if options.record:
        write_json(path, {**(read(path) if path.exists() else {}), kind: measured(options.rounds, options.precision)})
        print(f"{path} has the ratios of {kind}")
        return 0
    known = read(path)
    own = known.get(kind)
    whose = (
        f"those of {kind}"
        if own
        else f"the slowest of {len(known)} other kinds: none are recorded of {kind} (--record)"
    )
    return compare(own or widest(known), options.rounds, options.precision, whose)


def kind_of(precision: str) -> str:
    """What the ratios depend on."""
    facts = machine()
    return str(facts["processor"]) + (f", {facts['vector_instructions']}, fp32" if precision == "fp32" else "")


def widest(kinds: Mapping[str, Ratios]) -> Ratios:
    """The slowest of all kinds of processors, by their upper quartiles."""
    found: Ratios = {}
    for key, ratio in (pair for ratios in kinds.values() for pair in ratios.items()):
        found[key] = [max(ratio[2], *found.get(key, [0.0]))] * 3
    return found


def compare(before: Mapping[str, Sequence[float]], rounds: int, precision: str, whose: str) -> int:
    """Print every ratio beside the committed one and what was done; the status is 1 if one is worse each time."""
    now = measured(rounds, precision)
    slower = worse(now, before)
    for _ in range(AGAIN):
        if slower:
            print(f"measured again: {len(slower)} ratios seem worse")
            now = measured(rounds, precision)
            slower = [key for key in worse(now, before) if key in slower]
    shared = sorted(now.keys() & before.keys())
    for key in shared:
        mark = "slower" if key in slower else "ok"
        print(f"{mark:>6}  {key}, {now[key][1]:.2f} now, {before[key][1]:.2f} committed")
    found = f"FAILED, {len(slower)} are" if slower else "passed, none is"
    print(f"compared {len(shared)} ratios with {whose}: {found} more than {ALLOWED} times as slow")
    return int(bool(slower))


def measured(rounds: int, precision: str) -> Ratios:
    """The ratios of all variants of two networks."""
    parts = [measure_steps(rounds, 16, 32, network, precision) for network in NETWORKS]
    return {key: ratio for part in parts for key, ratio in ratios(part).items()}


def ratios(part: Part) -> Ratios:
    """The quartiles of every ratio of a part that was just measured."""
    return {
        f"{comparison.title}: {name}": figures["ratio"]
        for comparison in part.comparisons
        for name, figures in summary(comparison).items()
        if name not in NOT_OURS
    }


def read(path: Path) -> dict[str, Ratios]:
    """The committed ratios by kind of processor."""
    kinds: dict[str, Any] | None = read_json(path)
    if kinds is None:
        raise UserError(f"--committed {path} does not exist; make it with: python -m benchmarks check --record")
    return kinds


def worse(now: Mapping[str, Sequence[float]], before: Mapping[str, Sequence[float]]) -> list[str]:
    """What got slower; something that both have in common must be there."""
    shared = now.keys() & before.keys()
    if not shared:
        raise UserError("nothing that was measured is among the committed ratios; add --record")
    return sorted(key for key in shared if now[key][0] > ALLOWED * before[key][1])
