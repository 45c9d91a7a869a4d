"""Other rules of selection, compared with RandomOnline, INFUSE and AlignedINFUSE on banks of embedded views.

    OMP_NUM_THREADS=1 python benchmarks/selection_trial.py --data-root DIR --seeds 3 --cells CELLS --out results/frozen

FixMatch with the options of the table beyond-selection, on the data that such choices are made on. Writes
selection-trial.json and selection-trial.md; the same command continues.
"""

import argparse
import copy
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from paper.cell import Cell
from paper.grid import run_grid
from paper.tables.coreset import frozen_column, selector_options

from vcc_infuse import INFUSE, AlignedINFUSE
from vcc_infuse.selectors.base import uniform
from vcc_infuse.selectors.head_gradients import alignment, mean_gradient
from vcc_infuse.selectors.infuse.aligned import aligned
from vcc_infuse.selectors.infuse.robust import random_scores
from vcc_infuse.selectors.ranking import order
from vcc_infuse.selectors.scoring import ScoredSelector, example_columns
from vcc_infuse.utils.io import write_json, write_text

SETTINGS = ("stl10", 40), ("cifar10", 40), ("cifar10", 250), ("fashion_mnist", 100)
KEEPS = 0.1, 0.2, 0.4


class Trial(AlignedINFUSE):
    """What the rules have in common: the head at the start of the run, which is the probe, is the witness."""

    witness_ = None

    def choose(self, pool, budget):
        if self.witness_ is None:
            self.witness_ = copy.deepcopy(pool.model.head).requires_grad_(False)
        return super().choose(pool, budget)


class Together(Trial):
    """One gradient of all classes in the pool, and one of all labels, mixed by Mixup."""

    def gradient(self, pool):
        logits, features = pool.sample_weak(self.sample)
        probs = logits.softmax(1)
        errors = probs - aligned(probs, pool.task.label_counts.to(probs))
        return unit(mean_gradient(errors, features)) + unit(INFUSE.gradient(self, pool))


class Draw(Together):
    """The same scores, but at random from all that do no harm."""

    def coreset(self, rows, budget, *, classes, rng):
        return super().coreset(random_scores(rows, rng(31)), budget, classes=classes, rng=rng)


class TopHalf(Together):
    """The same scores, but at random from twice as many as are kept."""

    def coreset(self, rows, budget, *, classes, rng):
        return uniform(rng(32).permutation(order(rows)[: 2 * budget])[:budget])


class Witness(Together):
    """The influence of each example on the probe instead of the head that is trained."""

    def score_pool(self, pool):
        direction = self.direction(pool)

        def reduce(chunk):
            probs = self.witness_(chunk.outputs.features).softmax(1)
            errors = chunk.weights[:, None] * (probs - chunk.targets)
            return {"score": alignment(direction, errors, chunk.outputs.features), **example_columns(chunk)}

        return pool.scan(reduce)


class DrawPerClass(Draw):
    """A gradient per class, and at random from all that do no harm."""

    gradient = AlignedINFUSE.gradient


class Rho(Trial):
    """RHO-loss: the largest loss of the pseudo label that the witness does not have as well."""

    def score_pool(self, pool):
        def reduce(chunk):
            own, witness = (
                F.cross_entropy(logits, chunk.labels, reduction="none")
                for logits in (chunk.outputs.logits, self.witness_(chunk.outputs.features))
            )
            return {"score": own - witness, **example_columns(chunk)}

        return pool.scan(reduce)


class EasyFirst(Trial):
    """The most confident pseudo labels."""

    def score_pool(self, pool):
        return pool.scan(lambda chunk: {"score": chunk.confidence, **example_columns(chunk)})


class InfoBatch(ScoredSelector):
    """InfoBatch (Qin et al., ICLR 2024): examples of low loss are kept half as often, and count twice."""

    def __init__(self, *, keep=0.4, every=None, first_interval="score"):
        super().__init__(keep=keep, every=every, first_interval=first_interval)

    def score_pool(self, pool):
        def reduce(chunk):
            loss = F.cross_entropy(chunk.outputs.logits, chunk.labels, reduction="none")
            return {"score": loss, **example_columns(chunk)}

        return pool.scan(reduce)

    def coreset(self, rows, budget, *, classes, rng):
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


def chances_of(weights, budget):
    """Chances in proportion to `weights`, at most 1, that sum to `budget`."""
    low, high = 0.0, len(weights) / weights.min()
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if np.minimum(1, middle * weights).sum() > budget else (middle, high)
    return np.minimum(1, high * weights)


def unit(direction):
    """The same direction with length 1."""
    return direction / direction.norm().clamp_min(1e-12)


RULES = {
    "RandomOnline": "RandomOnline", "INFUSE": "INFUSE", "AlignedINFUSE": "AlignedINFUSE",
    "… at random from the harmless": "selection_trial.DrawPerClass",
    "one gradient of all classes": "selection_trial.Together",
    "… at random from the harmless, one gradient": "selection_trial.Draw",
    "… at random from twice as many, one gradient": "selection_trial.TopHalf",
    "… influence on the witness, one gradient": "selection_trial.Witness",
    "RHO-loss with the witness": "selection_trial.Rho", "easy first": "selection_trial.EasyFirst",
    "InfoBatch": "selection_trial.InfoBatch",
}  # fmt: skip


def cells(seeds):
    """Each setting, part that is kept, rule and seed, with its run."""
    for seed in seeds:
        for setting in SETTINGS:
            for keep in KEEPS:
                common = {**frozen_column(*setting, keep).options, "algorithm": "FixMatch", "seed": seed}
                for name, selector in RULES.items():
                    yield (setting, keep, name, seed), Cell({**common, **selector_options(selector, "frozen")})


def table(runs, options):
    """Mean error, and in how many runs it is below RandomOnline's."""
    lines = [
        "# Rules of selection, tried", "",
        f"    OMP_NUM_THREADS=1 python benchmarks/selection_trial.py --data-root DIR --seeds {options.seeds} "
        "--cells CELLS --out results/frozen", "",
        "FixMatch, error % and, in brackets, runs below RandomOnline on the same seed. The last column is the mean "
        "difference from RandomOnline in points.", "",
        "| rule | " + " | ".join(f"{data} {labels}, {keep:.0%}" for data, labels in SETTINGS for keep in KEEPS)
        + " | all |",
        "|---" * (len(SETTINGS) * len(KEEPS) + 2) + "|",
    ]  # fmt: skip
    for name in RULES:
        shown, every = [], []
        for column in ((setting, keep) for setting in SETTINGS for keep in KEEPS):
            own, base = (errors(runs, *column, rule) for rule in (name, "RandomOnline"))
            pairs = [(own[seed], base[seed]) for seed in own.keys() & base.keys()]
            every += pairs
            mean = f"{np.mean(list(own.values())):.2f}" if own else "–"
            shown.append(f"{mean} ({sum(a < b for a, b in pairs)} of {len(pairs)})")
        total = f"{sum(a < b for a, b in every)} of {len(every)}, {np.mean([a - b for a, b in every]):+.2f}"
        lines.append(f"| {name} | " + " | ".join(shown) + f" | {total} |")
    return "\n".join(lines) + "\n"


def errors(runs, setting, keep, name):
    """Error by seed."""
    return {run[3]: error for run, error in runs.items() if run[:3] == (setting, keep, name)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-root", required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--cells", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    wanted = dict(cells(range(options.seeds)))
    options.cells.mkdir(parents=True, exist_ok=True)
    failures = run_grid(list(wanted.values()), options.cells, data_root=options.data_root)
    found = {run: cell.summary(options.cells) for run, cell in wanted.items()}
    runs = {run: 100 * summary["error"] for run, summary in found.items() if summary}
    write_json(options.out / "selection-trial.json", [[*run, error] for run, error in runs.items()])
    write_text(options.out / "selection-trial.md", table(runs, options))
    raise SystemExit("\n".join(failure.error for failure in failures) or None)


if __name__ == "__main__":
    main()
