"""One of several processes, or the only one: runs cases for a few steps and writes their final states."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn

import vcc_infuse.training.trainer
from tests.helpers.every import cases, flat, trainer
from vcc_infuse import SmallConv, SSLData, Trainer
from vcc_infuse.augment.views import ImageViews
from vcc_infuse.utils.seeding import seed_step

CASES = cases()
# Losses between the examples of a batch, which each process takes over its own part of it: CoMatch contrasts pairs,
# FreeMatch divides by the number of selected examples. Their mean over processes is not that of the whole batch.
COUPLED = {"CoMatch": {"contrast_weight": 0.0}, "FreeMatch": {"fairness": 0.0}}
MOVES = {"weak": (0, 0), "weak_2": (0, 1), "strong": (1, 0), "strong_2": (-1, 0)}


class FixedViews(ImageViews):
    """Views without randomness: every name has its own shift, so one process and two see the same pixels."""

    def __call__(self, name: str, raw: Tensor) -> Tensor:
        return self.plain(raw).roll(MOVES.get(name, (0, 0)), (2, 3))


class Recording(Trainer):
    """Records every core set and the ids of every batch."""

    def prepare(self, data: SSLData, resume: bool = False) -> None:
        super().prepare(data, resume)
        self.coresets, self.batch_ids = {}, {}

    def refresh_coreset(self, number: int) -> None:
        super().refresh_coreset(number)
        scheduler = self.state_.coreset_scheduler
        if scheduler.due(number):
            self.coresets[str(number)] = tuple(scheduler.coreset)

    def train_step(self, number: int) -> None:
        batch = self.batches_.at(number)
        self.batch_ids[str(number)] = {"labeled": batch.ids, "pool": batch.pool_ids}
        super().train_step(number)


def run(key: str, data: SSLData, *, fixed: bool = False, shift: int = 0) -> dict[str, object]:
    """The final state of four steps of a case, and its core sets.

    `fixed` takes away what must differ between one process and two: random views, BatchNorm, which normalizes by
    each process's part of the batch, and the terms in COUPLED. `shift` changes the random draws of a step, but not
    the initial weights.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh()) if fixed else SmallConv(4)
    case = copy.deepcopy(CASES[key])
    with ExitStack() as stack:
        if fixed:
            vars(case[0]).update(COUPLED.get(key, {}))
            views = lambda dataset, preprocessing: FixedViews(dataset.mean, dataset.std)  # noqa: E731
            stack.enter_context(patch("vcc_infuse.training.state.make_views", views))
        seeded = lambda seed, step, rank: seed_step(seed + shift, step, rank)  # noqa: E731
        stack.enter_context(patch.object(vcc_infuse.training.trainer, "seed_step", seeded))
        job = trainer(model, case, Recording, steps=4)
        job.fit(data)
    # Only the first process evaluates.
    state = {key: part for key, part in job.state_.state_dict().items() if key != "counters"}
    return flat({**state, "coresets": job.coresets, "world": job.state_.world})


def write_run_folder(folder: Path, data: SSLData) -> None:
    """Six steps into one run folder that both processes share, and the ids each of them saw."""
    job = trainer(SmallConv(4), CASES["FixMatch"], Recording, steps=6, eval_every=3, out=str(folder / "run"))
    job.fit(data)
    torch.save(job.batch_ids, folder / f"batch-ids-{dist.get_rank()}.pt")


def write_states(keys: Iterable[str], folder: Path, data: SSLData) -> None:
    """The final states of cases, with random views and with fixed ones."""
    for fixed in (False, True):
        for key in keys:
            state = run(key, data, fixed=fixed)
            torch.save(state, folder / f"{key}-{'fixed' if fixed else 'random'}-{dist.get_rank()}.pt")
