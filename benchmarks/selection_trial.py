"""Other rules of selection, compared with RandomOnline, INFUSE and AlignedINFUSE on banks of embedded views.

    OMP_NUM_THREADS=1 python -m benchmarks selection_trial --data-root DIR --seeds 3 --cells CELLS --out results/frozen

FixMatch with the options of the table beyond-selection, on the data that such choices are made on. Writes
selection-trial.json and selection-trial.md; the same command continues.
"""

from __future__ import annotations

import copy
from argparse import Namespace
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paper.cell import Cell
from paper.grid import run_grid
from paper.tables.coreset import frozen_column, selector_options
from vcc_infuse import INFUSE, AlignedINFUSE
from vcc_infuse.cli.parser import Parser, integer
from vcc_infuse.errors import UserError
from vcc_infuse.selectors.base import FirstInterval, Generators, ScoredSelector, example_columns, uniform
from vcc_infuse.selectors.infuse.aligned import aligned
from vcc_infuse.selectors.infuse.robust import random_scores
from vcc_infuse.selectors.pool import Pool, PoolChunk, alignment, mean_gradient
from vcc_infuse.selectors.ranking import Scored, Selection, order
from vcc_infuse.types import Coreset
from vcc_infuse.utils.io import write_json, write_text

SETTINGS = (("stl10", 40), ("cifar10", 40), ("cifar10", 250), ("fashion_mnist", 100))
KEEPS = (0.1, 0.2, 0.4)
TrialRun = tuple[tuple[str, int], float, str, int]
"""Setting, part that is kept, rule and seed."""


class Trial(AlignedINFUSE):
    """What the rules have in common: the head at the start of the run, which is the probe, is the witness."""

    witness_: nn.Module | None = None

    def choose(self, pool: Pool, budget: int) -> Selection:
        """Keep the first head that is seen, then choose."""
        if self.witness_ is None:
            self.witness_ = copy.deepcopy(pool.model.get_submodule("head")).requires_grad_(False)
        return super().choose(pool, budget)

    def witness(self, features: Tensor) -> Tensor:
        """Logits of the witness, (rows, classes)."""
        assert self.witness_ is not None
        logits: Tensor = self.witness_(features)
        return logits


class Together(Trial):
    """One gradient of all classes in the pool, and one of all labels, mixed by Mixup."""

    def gradient(self, pool: Pool) -> Tensor:
        """Both gradients at length 1, added."""
        logits, features = pool.sample_weak(self.sample)
        probs = logits.softmax(1)
        errors = probs - aligned(probs, pool.task.label_counts.to(probs))
        return unit(mean_gradient(errors, features)) + unit(INFUSE.gradient(self, pool))


class Draw(Together):
    """The same scores, but at random from all that do no harm."""

    def coreset(self, rows: Scored, budget: int, *, classes: int, rng: Generators) -> Coreset:
        """Rank by random numbers where the score is not negative."""
        return super().coreset(random_scores(rows, rng(31)), budget, classes=classes, rng=rng)


class TopHalf(Together):
    """The same scores, but at random from twice as many as are kept."""

    def coreset(self, rows: Scored, budget: int, *, classes: int, rng: Generators) -> Coreset:
        """Draw from the best."""
        return uniform(rng(32).permutation(order(rows)[: 2 * budget])[:budget])


class Witness(Together):
    """The influence of each example on the probe instead of the head that is trained."""

    def score_pool(self, pool: Pool) -> dict[str, Tensor]:
        """Alignment of each example's gradient at the witness."""
        direction = self.direction(pool)

        def reduce(chunk: PoolChunk) -> dict[str, Tensor]:
            errors = chunk.weights[:, None] * (self.witness(chunk.outputs.features).softmax(1) - chunk.targets)
            return {"score": alignment(direction, errors, chunk.outputs.features), **example_columns(chunk)}

        return pool.scan(reduce)


class DrawPerClass(Draw):
    """A gradient per class, and at random from all that do no harm."""

    gradient = AlignedINFUSE.gradient


class Rho(Trial):
    """RHO-loss: the largest loss of the pseudo label that the witness does not have as well."""

    def score_pool(self, pool: Pool) -> dict[str, Tensor]:
        """The loss of the head minus that of the witness."""

        def reduce(chunk: PoolChunk) -> dict[str, Tensor]:
            loss = F.cross_entropy(chunk.outputs.logits, chunk.labels, reduction="none")
            expected = F.cross_entropy(self.witness(chunk.outputs.features), chunk.labels, reduction="none")
            return {"score": loss - expected, **example_columns(chunk)}

        return pool.scan(reduce)


class EasyFirst(Trial):
    """The most confident pseudo labels."""

    def score_pool(self, pool: Pool) -> dict[str, Tensor]:
        """The confidence."""
        return pool.scan(lambda chunk: {"score": chunk.confidence, **example_columns(chunk)})


class InfoBatch(ScoredSelector):
    """InfoBatch (Qin et al., ICLR 2024): examples of low loss are kept half as often, and count twice."""

    def __init__(self, *, keep: float = 0.4, every: int | None = None, first_interval: FirstInterval = "score") -> None:
        super().__init__(keep=keep, every=every, first_interval=first_interval)

    def score_pool(self, pool: Pool) -> dict[str, Tensor]:
        """The loss of the pseudo label."""

        def reduce(chunk: PoolChunk) -> dict[str, Tensor]:
            loss = F.cross_entropy(chunk.outputs.logits, chunk.labels, reduction="none")
            return {"score": loss, **example_columns(chunk)}

        return pool.scan(reduce)

    def coreset(self, rows: Scored, budget: int, *, classes: int, rng: Generators) -> Coreset:
        """A systematic sample; weights are the inverse of the chances."""
        useful = np.flatnonzero(rows.selected)
        if len(useful) <= budget:
            return super().coreset(rows, budget, classes=classes, rng=rng)
        generator = rng(33)
        loss = rows.scores[useful]
        chances = chances_of(np.where(loss < loss.mean(), 0.5, 1.0), budget)
        places = generator.permutation(len(useful))
        ends = np.cumsum(chances[places])
        taken = places[np.searchsorted(ends, generator.random() + np.arange(budget)).clip(max=len(useful) - 1)]
        weights = torch.from_numpy(1 / chances[taken]).float()
        return uniform(useful[taken])._replace(weights=weights / weights.mean())


def chances_of(weights: np.ndarray, budget: int) -> np.ndarray:
    """Chances in proportion to `weights`, at most 1, that sum to `budget`."""
    low = 0.0
    high = len(weights) / weights.min()
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if np.minimum(1, middle * weights).sum() > budget else (middle, high)
    chances: np.ndarray = np.minimum(1, high * weights)
    return chances


def unit(direction: Tensor) -> Tensor:
    """The same direction with length 1."""
    scaled: Tensor = direction / direction.norm().clamp_min(1e-12)
    return scaled


RULES = {
    "RandomOnline": "RandomOnline", "INFUSE": "INFUSE", "AlignedINFUSE": "AlignedINFUSE",
    "… at random from the harmless": "benchmarks.selection_trial.DrawPerClass",
    "one gradient of all classes": "benchmarks.selection_trial.Together",
    "… at random from the harmless, one gradient": "benchmarks.selection_trial.Draw",
    "… at random from twice as many, one gradient": "benchmarks.selection_trial.TopHalf",
    "… influence on the witness, one gradient": "benchmarks.selection_trial.Witness",
    "RHO-loss with the witness": "benchmarks.selection_trial.Rho", "easy first": "benchmarks.selection_trial.EasyFirst",
    "InfoBatch": "benchmarks.selection_trial.InfoBatch",
}  # fmt: skip


def main(argv: Sequence[str]) -> None:
    """Run what is missing and write the table."""
    parser = Parser("python -m benchmarks selection_trial", "Compare rules of selection on banks of embedded views.")
    parser.add_argument("--data-root", required=True, help="folder with the datasets")
    parser.add_argument("--seeds", type=integer(), default=3, help="runs of each rule (3)")
    parser.add_argument("--cells", type=Path, required=True, help="folder for the run folders")
    parser.add_argument("--out", type=Path, required=True, help="folder for the table")
    options = parser.read(argv)
    wanted = dict(cells(options.seeds))
    options.cells.mkdir(parents=True, exist_ok=True)
    failures = run_grid(list(wanted.values()), options.cells, data_root=options.data_root)
    summaries = {run: cell.summary(options.cells) for run, cell in wanted.items()}
    errors = {run: 100 * summary["error"] for run, summary in summaries.items() if summary}
    write_json(options.out / "selection-trial.json", [[*run, error] for run, error in errors.items()])
    write_text(options.out / "selection-trial.md", page(errors, options))
    if failures:
        raise UserError(f"{len(failures)} runs failed; the same command runs them again")


def cells(seeds: int) -> Iterator[tuple[TrialRun, Cell]]:
    """Each setting, part that is kept, rule and seed, with its run."""
    for seed, setting, keep in product(range(seeds), SETTINGS, KEEPS):
        common = {**frozen_column(*setting, keep).options, "algorithm": "FixMatch", "seed": seed}
        for name, selector in RULES.items():
            yield (setting, keep, name, seed), Cell({**common, **selector_options(selector, "frozen")})


def page(errors: dict[TrialRun, float], options: Namespace) -> str:
    """Mean error, and in how many runs it is below RandomOnline's."""
    columns = list(product(SETTINGS, KEEPS))
    lines = [
        "# Rules of selection, tried", "",
        f"    OMP_NUM_THREADS=1 python -m benchmarks selection_trial --data-root DIR --seeds {options.seeds} "
        "--cells CELLS --out results/frozen", "",
        "FixMatch, error % and, in brackets, runs below RandomOnline on the same seed. The last column is the mean "
        "difference from RandomOnline in points.", "",
        "| rule | " + " | ".join(f"{data} {labels}, {keep:.0%}" for (data, labels), keep in columns) + " | all |",
        "|---" * (len(columns) + 2) + "|",
    ]  # fmt: skip
    for name in RULES:
        shown = []
        gaps: list[float] = []
        for setting, keep in columns:
            ours = by_seed(errors, setting, keep, name)
            base = by_seed(errors, setting, keep, "RandomOnline")
            pairs = [ours[seed] - base[seed] for seed in ours.keys() & base.keys()]
            gaps += pairs
            mean = f"{np.mean(list(ours.values())):.2f}" if ours else "–"
            shown.append(f"{mean} ({sum(gap < 0 for gap in pairs)} of {len(pairs)})")
        total = f"{sum(gap < 0 for gap in gaps)} of {len(gaps)}, {np.mean(gaps):+.2f}"
        lines.append(f"| {name} | " + " | ".join(shown) + f" | {total} |")
    return "\n".join(lines) + "\n"


def by_seed(errors: dict[TrialRun, float], setting: tuple[str, int], keep: float, name: str) -> dict[int, float]:
    """Error by seed."""
    return {run[3]: error for run, error in errors.items() if run[:3] == (setting, keep, name)}
