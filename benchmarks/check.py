"""Whether a step got slower: a few comparisons again, held against those committed for this kind of processor.

    OMP_NUM_THREADS=1 python -m benchmarks check             # exit status 1 if a step got slower
    OMP_NUM_THREADS=1 python -m benchmarks check --record    # commit what this processor measures

Only ratios are compared. One counts as worse if three quarters of its rounds are more than 1.5 times the committed
median, and are so again when everything is measured a second time: a busy machine is to fail nothing. What is slow
depends on the processor (one with matrix units halves the ratio of VCC), so every kind has ratios of its own, and on a
kind without any nothing is compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vcc_infuse.cli.parser import Parser, integer
from vcc_infuse.errors import UserError
from vcc_infuse.utils.io import read_json, write_json

from .page import Part, machine, summary
from .steps import measure_steps

ALLOWED = 1.5
NETWORKS = ("SmallConv", "head")
Ratios = dict[str, list[float]]
"""Quartiles of the ratio of a variant to its base, by comparison and variant."""


def main(argv: Sequence[str]) -> int:
    """Measure, print one line per ratio, and return the exit status."""
    parser = Parser("python -m benchmarks check", "Measure steps again and compare them with the committed ratios.")
    parser.add_argument("--rounds", type=integer(), default=3, help="turns of each variant (3)")
    parser.add_argument("--committed", default="results/bench/check.json", help="what to compare with (%(default)s)")
    parser.add_argument("--record", action="store_true", help="write the ratios of this kind of processor there")
    options = parser.read(argv)
    path = Path(options.committed)
    kind = str(machine()["processor"])
    if options.record:
        write_json(path, {**(read(path) if path.exists() else {}), kind: measured(options.rounds)})
        print(f"{path} has the ratios of {kind}")
        return 0
    kinds = read(path)
    if kind not in kinds:
        print(f"{path} has no ratios of this kind of processor ({kind}): nothing is compared; --record adds them")
        return 0
    return compare(kinds[kind], options.rounds)


def compare(before: Mapping[str, Sequence[float]], rounds: int) -> int:
    """Print every ratio beside the committed one; the status is 1 if one is worse twice."""
    now = measured(rounds)
    slower = worse(now, before)
    if slower:
        print(f"measured again: {len(slower)} ratios seem worse")
        now = measured(rounds)
        slower = [key for key in worse(now, before) if key in slower]
    for key in sorted(now.keys() & before.keys()):
        mark = "slower" if key in slower else "ok"
        print(f"{mark:>6}  {key}, {now[key][1]:.2f} now, {before[key][1]:.2f} committed")
    return int(bool(slower))


def measured(rounds: int) -> Ratios:
    """The ratios of all variants of two networks."""
    return {key: ratio for network in NETWORKS for key, ratio in ratios(measure_steps(rounds, 16, 32, network)).items()}


def ratios(part: Part) -> Ratios:
    """The quartiles of every ratio of a part that was just measured."""
    return {
        f"{comparison.title}: {name}": figures["ratio"]
        for comparison in part.comparisons
        for name, figures in summary(comparison).items()
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
