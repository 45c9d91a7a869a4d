"""Whether a step got slower: a few comparisons again, held against the committed ones.

    OMP_NUM_THREADS=1 python -m benchmarks check

Only ratios are compared, and a ratio counts as worse if three quarters of its rounds are more than 1.5 times the
committed median, so that a busy machine does not fail it. The exit status is 1 if one is. On another kind of processor
other things are slow, and nothing is compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from vcc_infuse.cli.parser import Parser, integer
from vcc_infuse.errors import UserError
from vcc_infuse.utils.io import read_json

from .page import Part, machine, summary
from .steps import measure_steps

ALLOWED = 1.5
NETWORKS = ("SmallConv", "head")
Ratios = dict[tuple[str, str], list[float]]
"""Quartiles of the ratio of a variant, by comparison and variant."""


def main(argv: Sequence[str]) -> int:
    """Measure, print one line per ratio, and return the exit status."""
    parser = Parser("python -m benchmarks check", "Measure steps again and compare them with the committed ratios.")
    parser.add_argument("--rounds", type=integer(), default=3, help="turns of each variant (3)")
    parser.add_argument("--committed", default="results/bench/steps.json", help="what to compare with (%(default)s)")
    options = parser.read(argv)
    path = Path(options.committed)
    before = committed(path)
    if kind_of_machine(path) != machine()["vector_instructions"]:
        print(f"{path} was measured on another kind of processor ({kind_of_machine(path)}): nothing is compared")
        return 0
    now = {key: ratio for part in measured(options.rounds) for key, ratio in ratios(part).items()}
    slower = worse(now, before)
    for key in sorted(now.keys() & before.keys()):
        mark = "slower" if key in slower else "ok"
        print(f"{mark:>6}  {key[0]}: {key[1]}, {now[key][1]:.2f} now, {before[key][1]:.2f} committed")
    return int(bool(slower))


def measured(rounds: int) -> Iterator[Part]:
    """The steps of two networks."""
    for network in NETWORKS:
        yield measure_steps(rounds, 16, 32, network)


def ratios(part: Part) -> Ratios:
    """The quartiles of every ratio of a part that was just measured."""
    return {
        (comparison.title, name): figures["ratio"]
        for comparison in part.comparisons
        for name, figures in summary(comparison).items()
    }


def figures_of(path: Path) -> dict[str, Any]:
    """A file of results."""
    figures: dict[str, Any] | None = read_json(path)
    if figures is None:
        raise UserError(f"--committed {path} does not exist; make it with: python -m benchmarks steps")
    return figures


def kind_of_machine(path: Path) -> str:
    """The vector instructions of the processor on which a file of results was measured."""
    return str(figures_of(path)["machine"]["vector_instructions"])


def committed(path: Path) -> Ratios:
    """The quartiles of every ratio, read from a file of results."""
    return {
        (comparison["title"], name): variant["ratio"]
        for comparison in figures_of(path)["comparisons"]
        for name, variant in comparison["summary"].items()
    }


def worse(
    now: Mapping[tuple[str, str], Sequence[float]], before: Mapping[tuple[str, str], Sequence[float]]
) -> list[Any]:
    """What got slower; something that both have in common must be there."""
    shared = now.keys() & before.keys()
    if not shared:
        raise UserError("nothing that was measured is among the committed results; run: python -m benchmarks steps")
    return sorted(key for key in shared if now[key][0] > ALLOWED * before[key][1])
