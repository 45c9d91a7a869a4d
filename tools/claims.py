"""Which claims of the paper hold on our tables; the verdicts follow from the intervals alone.

    python tools/claims.py                         results/frozen and results/scratch → docs/claims.md
    python tools/claims.py --results DIR --scratch DIR --out FILE

A claim compares a row of a table with another one, in every column that has both. It is confirmed where the 95 %
interval of the paired difference excludes zero in the claimed direction, reversed where it excludes zero in the other
direction, and not confirmed elsewhere. A column in which the row cannot act is not tested and counts nowhere else.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Collection, Iterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # the package `paper` is beside this folder, not installed

from paper.collect import LABELS, Estimate, better_sign, estimate
from paper.render import interval, precision
from vcc_infuse.utils.io import write_text

CORE = ("FixMatch", "FlexMatch", "SimMatch")
BASES = ("FixMatch", "FlexMatch")
LAZY = "FullShort, lazy, 4/3 of the steps"
CALIBRATION = ("ece_calibrated", "mce_calibrated", "ace_calibrated")
CONFIRMED, OPEN, REVERSED, UNKNOWN = "confirmed", "not confirmed", "reversed", "not measured"
NOT_TESTED = "not tested"
CPU = "seconds_cpu"  # compared instead of hours where both rows have it
RESIDUAL = "calibrator.residual"
STARTS = {
    True: "at the softmax confidence",
    False: "at ½ (`residual=False`)",
    None: "at a value that these tables do not record (see their README)",
}
COVERAGE = "pseudo_label_coverage"
FULL = 100.0
HEAD = """# The paper's claims, one by one

Made by `python tools/claims.py` from the tables in `{folder}`; do not edit. A claim compares one row with another
on the same seeds. Its verdict is *confirmed* if the 95 % interval of the paired difference excludes zero in the claimed
direction, *reversed* if it excludes zero in the other direction, and else *not confirmed*. A column is *not tested* if
the row cannot act in it: every difference is exactly zero, or all pairs have the same error with every pseudo label
selected in both runs (a calibrated confidence, which acts at inference too, is then still compared). The overall
verdict is that of the mean over all tested columns, taken for each seed that all of them have. It holds *only on* a
column, or on a data set, if no other column is clear of zero in that direction by itself, or none was tested, and *only
on average* if no column is clear of zero by itself. Ties are
pairs without any difference: neither wins nor losses. A column with a single pair of runs counts only if none has more.
Intervals are not corrected for the number of claims. Every network is smaller, every run shorter than in the paper, so
*reversed* means reversed here.

ECE has two readings. The paper most likely reports that of the classifier's softmax, trained with or without VCC; r,
the confidence that VCC selects by, has another one. The VAE can only be compared with what it learns from, the fused
score r̃, which is measured on the pool: without the VAE there is no r at inference.
"""
IN_SHORT = """## In short

From scratch: a small network learns from random weights (`{scratch}`); only columns in which the base is ahead of
Supervised by two standard errors. There VCC starts {start}. Frozen: heads on features of a pretrained network
(`{folder}`), where VCC's view score is nearly empty and its temporal score half empty; there it starts {frozen_start}.
Mean difference [95 % interval], wins, columns that were tested.
"""
DETAILS = "All that follows is measured with heads on frozen features (`{folder}/README.md`)."


@dataclass(frozen=True)
class Claim:
    """`row` is better than `base` in `metric`, in all columns of `table` that have both."""

    text: str
    table: str
    row: str
    base: str
    metric: str = "error"

    @property
    def relative(self) -> bool:
        """Whether the difference is in percent of the base: times differ too much between columns."""
        return self.metric == "hours"


Tables = dict[str, list[dict[str, Any]]]
"""The entries of each table."""
Columns = dict[str, dict[str, float]]
"""By column, the difference of each seed."""


class Finding(NamedTuple):
    """The difference of a claim in one column, or over all; `wins` of `runs` pairs are better, `ties` exactly equal.

    `place` is the one column or data set that a verdict over all columns rests on, or the average of them.
    """

    verdict: str
    difference: Estimate | None
    wins: int
    runs: int
    ties: int = 0
    place: str = ""

    @property
    def words(self) -> str:
        """The verdict, with the place that it rests on."""
        return f"{self.verdict} only on {self.place}" if self.place else self.verdict


def paper_claims() -> Iterator[tuple[str, list[Claim]]]:
    """What the paper says."""
    yield (
        "VCC lowers the error of a method",
        [Claim(f"VCC lowers the error of {x}", "main", f"VCC-{x}", x) for x in CORE],
    )
    yield (
        "VCC lowers calibration errors",
        [
            Claim(f"VCC lowers the {LABELS[metric]}{reading(metric)} of {x}", "calibration", f"VCC-{x}", x, metric)
            for x in CORE
            for metric in ("ece", *CALIBRATION)
        ],
    )
    yield (
        "VCC is better than other calibrators",
        [
            Claim(
                f"VCC has a lower {short(metric)} than {other}",
                "calibrators",
                "VCC-FlexMatch",
                f"FlexMatch + {other}",
                metric,
            )
            for other in ("EnsembleTS, pseudo labels", "EnsembleTS, held-out labels", "MMCE")
            for metric in ("error", *CALIBRATION)
        ],
    )
    yield (
        "Each of the three scores helps",
        [
            Claim(
                f"The {score} score lowers the error of VCC-{x}",
                "ablation-scores",
                f"VCC-{x}",
                f"VCC-{x} without {score}",
            )
            for x in BASES
            for score in ("ensemble", "temporal", "view")
        ],
    )
    yield "Reconstruction by the VAE helps", [
        *(Claim(f"The VAE lowers the {short(metric)} of VCC-{x}", "ablation-vae", f"VCC-{x}",
                f"VCC-{x} without reconstruction", metric)
          for x in BASES for metric in ("error", "ece")),
        Claim("r has a lower ECE on pseudo labels than r̃", "confidence", "VCC: r of the VAE", "target r̃", "ece_end"),
    ]  # fmt: skip
    yield (
        "The calibrated confidence is more accurate",
        [
            Claim(
                "r ranks pseudo labels better than the softmax",
                "confidence",
                "VCC: r of the VAE",
                "softmax",
                "auroc_end",
            ),
            Claim(
                "r has a lower ECE on pseudo labels than the softmax",
                "confidence",
                "VCC: r of the VAE",
                "softmax",
                "ece_end",
            ),
        ],
    )
    yield (
        "INFUSE is better than other core sets",
        [
            Claim(f"INFUSE has a lower error than {other} ({x})", "coreset", f"{x} + INFUSE", f"{x} + {other}")
            for x in BASES
            for other in ("Random", "EarlyStop", "EL2N", "GradMatch", "RETRIEVE")
        ],
    )
    yield (
        "VCC-INFUSE saves time and lowers the error",
        [
            claim
            for x in BASES
            for claim in (
                Claim(f"INFUSE at 40 % takes less time than {x}", "efficiency", f"{x} + INFUSE, 40 % kept", x, "hours"),
                Claim(
                    f"VCC-INFUSE at 40 % takes less time than {x}",
                    "efficiency",
                    f"VCC-INFUSE-{x}, 40 % kept",
                    x,
                    "hours",
                ),
                Claim(f"VCC-INFUSE at 40 % has a lower error than {x}", "efficiency", f"VCC-INFUSE-{x}, 40 % kept", x),
            )
        ],
    )
    yield "VCC helps on a long tail", [
        Claim("VCC lowers the error of FixMatch", "imbalance", "VCC-FixMatch", "FixMatch"),
        *(Claim(f"VCC has a lower error than {p}", "imbalance", "VCC-FixMatch", f"FixMatch + {p}")
          for p in ("DASO", "DebiasPL", "DARP", "Adsh")),
    ]  # fmt: skip


def controls() -> Iterator[tuple[str, list[Claim]]]:
    """What the paper does not compare with, and what departs from it."""
    yield (
        "VCC against a lower threshold alone",
        [
            Claim("VCC has a lower error than a threshold of 0.8", "readings", "VCC-FixMatch", "FixMatch at 0.8"),
            Claim("A threshold of 0.8 lowers the error of FixMatch", "readings", "FixMatch at 0.8", "FixMatch"),
        ],
    )
    yield "VCC against its controls", [
        claim
        for x in CORE
        for claim in (
            Claim(f"VCC has a lower error than balance alone ({x})", "main", f"VCC-{x}", f"{x} + balance"),
            Claim(f"VCC has a lower ECE than a temperature alone ({x})", "main", f"VCC-{x}", f"{x} + temperature",
                  "ece_calibrated"),
        )
    ]  # fmt: skip
    yield (
        "What departs from VCC",
        [
            claim
            for x in CORE
            for claim in (
                Claim(f"RobustVCC lowers the error of {x}", "main", f"RobustVCC-{x}", x),
                Claim(f"Balance alone lowers the error of {x}", "main", f"{x} + balance", x),
                Claim(
                    f"RobustVCC has a lower error than balance alone ({x})", "main", f"RobustVCC-{x}", f"{x} + balance"
                ),
            )
        ],
    )
    yield "A loss of VCC that trains the classifier too", [
        Claim(f"joint=True lowers the error of VCC-{x}", "ablation-vae",
              f"VCC-{x} whose loss trains the classifier too", f"VCC-{x}")
        for x in BASES
    ]  # fmt: skip
    yield "The VAE against an MLP without z", [
        Claim(f"The VAE has a lower error than an MLP (VCC-{x})", "ablation-vae", f"VCC-{x}",
              f"VCC-{x} with an MLP instead of the VAE")
        for x in BASES
    ]  # fmt: skip
    yield "Core sets against their controls", [
        Claim(f"{row} has a lower error than {base} ({x})", "coreset", f"{x} + {row}", f"{x} + {base}")
        for x in BASES
        for row, base in (
            ("INFUSE", "RandomOnline"), ("INFUSE", "FullShort"), ("INFUSE", LAZY),
            ("INFUSE", "RobustINFUSE"), ("RobustINFUSE", "RandomOnline"), ("OracleINFUSE", "INFUSE"),
        )
        if (x, base) != ("FlexMatch", LAZY)  # FlexMatch learns from nearly every row, so it has no lazy rows
    ]  # fmt: skip
    yield (
        "VCC on top of a wrapper for long tails",
        [
            Claim(f"VCC lowers the error of FixMatch + {p}", "imbalance", f"FixMatch + {p} + VCC", f"FixMatch + {p}")
            for p in ("DARP", "ABC")
        ],
    )


def main_claims() -> list[Claim]:
    """The paper's claims, one line each, with both readings of its ECE, and what the first one must be held against."""
    both = {"ece": "a lower ECE of the classifier trained with VCC", "ece_calibrated": "a lower ECE of r"}
    return [
        *(Claim(f"VCC lowers the error of {x}", "main", f"VCC-{x}", x) for x in CORE),
        Claim("(a control) VCC errs less than a threshold of 0.8", "readings", "VCC-FixMatch", "FixMatch at 0.8"),
        *(Claim(f"{text} ({x})", "main", f"VCC-{x}", x, metric) for metric, text in both.items() for x in CORE),
        Claim("r ranks pseudo labels better", "confidence", "VCC: r of the VAE", "softmax", "auroc_end"),
        Claim("the VAE lowers the error", "ablation-vae", "VCC-FixMatch", "VCC-FixMatch without reconstruction"),
        Claim("r has a lower ECE than r̃, which the VAE learns from", "confidence", "VCC: r of the VAE", "target r̃",
              "ece_end"),
        Claim("the view score lowers the error", "ablation-scores", "VCC-FixMatch", "VCC-FixMatch without view"),
        *(Claim(f"VCC errs less than Ensemble-TS on {labels}", "calibrators", "VCC-FlexMatch",
                f"FlexMatch + EnsembleTS, {labels}") for labels in ("pseudo labels", "held-out labels")),
        Claim("VCC helps on a long tail", "imbalance", "VCC-FixMatch", "FixMatch"),
        Claim("INFUSE beats a new random subset", "coreset", "FixMatch + INFUSE", "FixMatch + RandomOnline"),
        Claim("VCC-INFUSE at 40 % saves time", "efficiency", "VCC-INFUSE-FlexMatch, 40 % kept", "FlexMatch", "hours"),
        Claim("VCC-INFUSE at 40 % lowers the error", "efficiency", "VCC-INFUSE-FlexMatch, 40 % kept", "FlexMatch"),
    ]  # fmt: skip


def in_short(frozen: Tables, scratch: Tables) -> Iterator[str]:
    """A table with one line per claim of the paper."""
    yield "| the paper's claim | from scratch | frozen features |"
    yield "|---|---|---|"
    for claim in main_claims():
        entries = scratch.get(claim.table, [])
        learned = differences(claim, [entry for entry in entries if learns(entry["column"], claim, scratch)])
        yield f"| {claim.text} | {brief(claim, learned, entries)} | {brief_of(claim, frozen.get(claim.table, []))} |"


def brief_of(claim: Claim, entries: Sequence[dict[str, Any]]) -> str:
    """The verdict on all columns of a table."""
    return brief(claim, differences(claim, entries), entries)


def brief(claim: Claim, columns: Columns, entries: Sequence[dict[str, Any]]) -> str:
    """A verdict with its difference, its wins and the tested columns, in one cell."""
    columns = repeated(columns)
    idle = idle_columns(claim, entries)
    finding = overall(claim, columns, idle)
    if finding.difference is None:
        return UNKNOWN
    figure, wins = figures(claim, finding)
    return f"**{finding.words}**: {figure}, {wins}, {counted(columns, acting(claim, columns, idle), finding.place)}"


def counted(columns: Collection[str], able: Collection[str], place: str = "") -> str:
    """How many columns were tested, with the name of a single one or of their only data set, unless `place` says it."""
    rest = f", {len(columns) - len(able)} more not tested" if len(able) < len(columns) else ""
    if not able:
        return f"none of {len(columns)} columns tested"
    data = {data_set(column) for column in able}
    name = next(iter(able)) if len(able) == 1 else data.pop() if len(data) == 1 else ""
    shown = f" ({name})" if name and name != place else ""
    return f"{len(able)} column{'s' if len(able) > 1 else ''}{shown}{rest}"


def data_set(column: str) -> str:
    """The data of a column: `STL-10` of `STL-10, 40 labels`."""
    return column.partition(",")[0]


def start_of(tables: Tables) -> str:
    """Where the VAE of VCC starts, as the options of its plain rows say."""
    plain = {f"VCC-{name}" for name in CORE}
    found: dict[bool | None, set[str]] = {}
    for name, entries in tables.items():
        for entry in entries:
            if entry["row"] in plain and entry["metrics_by_seed"].get("error"):
                found.setdefault(entry.get("options", {}).get(RESIDUAL), set()).add(name)
    if len(found) < 2:
        return STARTS[next(iter(found), None)]
    return " and ".join(f"{STARTS[start]} in {', '.join(sorted(names))}" for start, names in found.items())


def learns(column: str, claim: Claim, tables: Tables) -> bool:
    """Whether the method on which a claim builds is ahead of Supervised by two standard errors in the main table."""
    method = next((name for name in CORE if name in claim.base), "FixMatch")
    setting = column.partition(" labels")[0]  # without the share that a core set keeps
    ahead = differences(Claim("", "main", method, "Supervised"), tables.get("main", []))
    gains = [-value for name, values in ahead.items() if name.startswith(setting) for value in values.values()]
    gain = estimate(gains)
    return gain is not None and gain.seeds > 1 and gain.mean > 2 * gain.std / math.sqrt(gain.seeds)


def reading(metric: str) -> str:
    """Which confidence a calibration error is of, where its name does not say."""
    return " (of r)" if metric.endswith("_calibrated") else ""


def short(metric: str) -> str:
    """The name of a metric without its unit."""
    label: str = LABELS[metric]
    return label.removesuffix(" %")


def differences(claim: Claim, entries: Sequence[dict[str, Any]]) -> Columns:
    """By column, the difference of each seed that both rows have."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    both = [entry for entry in entries if entry["row"] in (claim.row, claim.base)]
    in_cpu = claim.relative and all(entry["metrics_by_seed"].get(CPU) for entry in both)
    for entry in both:
        metric = CPU if in_cpu else claim.metric
        found.setdefault(entry["column"], {})[entry["row"]] = entry["metrics_by_seed"].get(metric, {})
    pairs = {column: (rows[claim.row], rows[claim.base]) for column, rows in found.items() if len(rows) == 2}
    each = {
        column: {seed: change(claim, ours[seed], base[seed]) for seed in ours if seed in base}
        for column, (ours, base) in pairs.items()
    }
    return {column: values for column, values in each.items() if values}


def change(claim: Claim, ours: float, base: float) -> float:
    """The difference, for times in percent of the base."""
    return 100 * (ours / base - 1) if claim.relative else ours - base


def idle_columns(claim: Claim, entries: Sequence[dict[str, Any]]) -> set[str]:
    """Columns in which every pair of runs has the same error, and both runs select every pseudo label."""
    if claim.relative or claim.metric.endswith("_calibrated"):
        return set()
    error = Claim("", claim.table, claim.row, claim.base)
    covered = {
        (entry["column"], entry["row"], seed)
        for entry in entries
        for seed, coverage in entry["metrics_by_seed"].get(COVERAGE, {}).items()
        if coverage == FULL
    }
    return {
        column
        for column, by_seed in differences(error, entries).items()
        if all(difference == 0 and {(column, row, seed) for row in (claim.row, claim.base)} <= covered
               for seed, difference in by_seed.items())
    }  # fmt: skip


def judge(claim: Claim, values: Sequence[float], runs: Sequence[float] | None = None, *, idle: bool = False) -> Finding:
    """The verdict on the mean of `values`; wins and ties are counted among `runs`."""
    mean = estimate(values)
    pairs = values if runs is None else runs
    sign = better_sign(claim.metric)
    wins = sum(sign * run > 0 for run in pairs)
    ties = sum(run == 0 for run in pairs)
    if mean is None:
        return Finding(UNKNOWN, None, wins, len(pairs), ties)
    low, high = sorted((sign * mean.low, sign * mean.high))
    verdict = CONFIRMED if low > 0 else REVERSED if high < 0 else OPEN
    if math.isnan(mean.low):
        verdict = OPEN
    if idle or ties == len(pairs):
        verdict = NOT_TESTED
    return Finding(verdict, mean, wins, len(pairs), ties)


def repeated(columns: Columns) -> Columns:
    """The columns with more than one pair of runs, or all if there are none."""
    return {name: by_seed for name, by_seed in columns.items() if len(by_seed) > 1} or columns


def acting(claim: Claim, columns: Columns, idle: Set[str]) -> Columns:
    """The columns in which the row can act."""
    return {
        column: by_seed
        for column, by_seed in columns.items()
        if judge(claim, list(by_seed.values()), idle=column in idle).verdict != NOT_TESTED
    }


def overall(claim: Claim, columns: Columns, idle: Set[str] = frozenset()) -> Finding:
    """The verdict on the mean over columns, seed by seed; over those that are tested, if there are any."""
    columns = repeated(columns)
    able = acting(claim, columns, idle)
    by_column = able or columns
    shared = sorted(set.intersection(*(set(by_seed) for by_seed in by_column.values()))) if by_column else []
    means = [sum(by_seed[seed] for by_seed in by_column.values()) / len(by_column) for seed in shared]
    every = [run for by_seed in by_column.values() for run in by_seed.values()]
    finding = judge(claim, means, every, idle=not able)
    return finding._replace(place=only_place(claim, able, finding.verdict))


def only_place(claim: Claim, columns: Columns, verdict: str) -> str:
    """The column, data set or average that alone speaks for a verdict; empty if several columns do."""
    if verdict not in (CONFIRMED, REVERSED):
        return ""
    clear = [name for name, by_seed in columns.items() if judge(claim, list(by_seed.values())).verdict == verdict]
    data = {data_set(name) for name in clear}
    if not clear:
        return "average" if len(columns) > 1 else next(iter(columns))
    return clear[0] if len(clear) == 1 else data.pop() if len(data) == 1 else ""


def page(tables: Tables, folder: str = "results/frozen", scratch: Tables | None = None, learned: str = "") -> str:
    """The whole page on the tables of a folder, with those from scratch first if there are any."""
    lines = [HEAD.format(folder=folder)]
    if scratch:
        starts = {"start": start_of(scratch), "frozen_start": start_of(tables)}
        lines += [IN_SHORT.format(scratch=learned, folder=folder, **starts), *in_short(tables, scratch), ""]
    lines += [DETAILS.format(folder=folder), ""]
    for title, sections in (("What the paper claims", paper_claims()), ("Controls and departures", controls())):
        lines += [f"## {title}", ""]
        for name, claims in sections:
            lines += [f"### {name}", "", *section(claims, tables), ""]
    return "\n".join(lines)


def section(claims: Sequence[Claim], tables: Tables) -> Iterator[str]:
    """One line per claim, with its columns."""
    counted = (CONFIRMED, OPEN, REVERSED, NOT_TESTED)
    places = "confirmed / open / reversed / not tested"
    yield f"| claim | verdict | mean difference [95 % interval] | wins | columns {places} | table |"
    yield "|---|---|---|---|---|---|"
    for claim in claims:
        entries = tables.get(claim.table, [])
        columns = differences(claim, entries)
        idle = idle_columns(claim, entries)
        each = {name: judge(claim, list(values.values()), idle=name in idle) for name, values in columns.items()}
        counts = " / ".join(str(sum(f.verdict == verdict for f in each.values())) for verdict in counted)
        yield line(claim.text, claim, overall(claim, columns, idle), counts if each else "–")
        if len(each) > 1:
            for column, finding in each.items():
                yield line(f"· {column}", claim, finding, "")


def line(text: str, claim: Claim, finding: Finding, counts: str) -> str:
    """A line of the Markdown table."""
    verdict = f"**{finding.words}**" if counts else finding.words
    figure, wins = figures(claim, finding)
    return f"| {text} | {verdict} | {figure} | {wins} | {counts} | {claim.table if counts else ''} |"


def figures(claim: Claim, finding: Finding) -> tuple[str, str]:
    """The difference with its interval, and the wins."""
    digits = 0 if claim.relative else precision(claim.metric)
    figure = interval(finding.difference, digits) + (" %" if claim.relative and finding.difference else "")
    ties = f" ({finding.ties} ties)" if finding.ties else ""
    return figure, f"{finding.wins} of {finding.runs}{ties}" if finding.runs else "–"


def read(folder: Path, scale: str = "frozen") -> Tables:
    """The entries of each table of a scale in a folder."""
    found = sorted(folder.glob(f"*-{scale}.json"))
    return {path.stem.removesuffix(f"-{scale}"): json.loads(path.read_text("utf-8"))["entries"] for path in found}


def named(folder: Path) -> str:
    """A folder as the page calls it."""
    resolved = folder.resolve()
    return str(resolved.relative_to(ROOT)) if resolved.is_relative_to(ROOT) else resolved.name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=ROOT / "results" / "frozen")
    parser.add_argument("--scratch", type=Path, default=ROOT / "results" / "scratch")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "claims.md")
    options = parser.parse_args()
    scratch = read(options.scratch, "scratch")
    write_text(options.out, page(read(options.results), named(options.results), scratch, named(options.scratch)))


if __name__ == "__main__":
    main()
