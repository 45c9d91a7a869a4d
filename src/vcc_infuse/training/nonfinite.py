"""The health of a run: whether its loss is finite, and what a user should know about it although it went on."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..data.dataset import Examples
from ..data.ssl_data import SSLData
from ..types import Batch, Losses
from .config import TrainConfig

EXPLODED = 1e6  # a cross entropy is far below, so a larger loss is on its way to infinity
PATIENCE = 20  # batches in a row without a finite gradient, after which leaving out batches is given up
ROLLBACKS = 5
OFTEN, SELDOM = 1, 25  # steps between two looks: a look makes the host wait for a GPU, or for other processes
LONG_ENOUGH = 100  # steps after which a run without a pseudo label is worth a warning
REASONS = 3
MOST_BYTES = 2**32  # of images that are compared; reading more takes longer than a warning is worth


class LossWatch:
    """Remembers the first step whose loss is not finite or has exploded; only `found` waits for the device."""

    def __init__(self, device: torch.device, world: int = 1) -> None:
        self.device = device
        self.every = OFTEN if device.type == "cpu" and world == 1 else SELDOM
        self.reset()

    def reset(self) -> None:
        """Forget what was seen."""
        self.step = torch.full((), -1, dtype=torch.int64, device=self.device)
        self.terms, self.names = torch.zeros(0, device=self.device), tuple[str, ...]()

    @torch.no_grad()
    def see(self, number: int, losses: Losses) -> None:
        """Look at the terms of a step."""
        terms = torch.stack([term.detach().float() for term in losses.values()])
        if self.names != tuple(losses):
            self.names, self.terms = tuple(losses), torch.zeros_like(terms)
        first = (self.step < 0) & ~(terms.sum().abs() < EXPLODED)  # written so that NaN counts
        self.step = torch.where(first, number, self.step)
        self.terms = torch.where(first, terms, self.terms)

    def due(self, number: int) -> bool:
        """Whether to look after step `number`."""
        return number % self.every == 0

    def found(self) -> int | None:
        """The first bad step, if there was one."""
        step = int(self.step)
        return None if step < 0 else step

    def values(self) -> dict[str, float]:
        """The terms of the first bad step."""
        return dict(zip(self.names, self.terms.tolist(), strict=True))


def diverged(step: int, terms: dict[str, float], cause: str) -> str:
    """What happened and what helps, in one line."""
    shown = ", ".join(f"{name} {value:.4g}" for name, value in terms.items())
    bad = [value for value in terms.values() if not math.isfinite(value)]
    what = f"the loss is not finite in step {step}" if bad or not terms else f"the loss exploded in step {step}"
    return f"{what}{f' ({shown})' if shown else ''}: {cause}"


def find_cause(step: int, batch: Batch, terms: dict[str, float], mixed: str, config: TrainConfig) -> str:
    """The likely reason and its remedy. Before the first update the learning rate cannot be it."""
    views = {"labeled": batch.x, **{name: batch.views[name] for name in batch.views}}
    for name, view in views.items():
        if not view.isfinite().all():
            rows = int((~view.isfinite().flatten(1).all(1)).sum())
            return (
                f"{rows} {name} inputs of its batch hold NaN or infinite values; correct the data or the augmentation"
            )
    if config.lr <= 1 <= config.lr * config.weight_decay:
        return f"weight_decay ({config.weight_decay:g}) times lr ({config.lr:g}) is at least 1; lower weight_decay"
    if mixed == "fp16":
        return f"float16 holds numbers up to 65504; use precision fp32 or bf16, or an lr below {config.lr:g}"
    if step == 0:
        bad = [name for name, value in terms.items() if not abs(value) < EXPLODED]
        where = f"the term {' and '.join(bad)}" if bad else "the method"
        return f"no update was made yet, so look at {where} and at the starting weights"
    return f"the learning rate is too high; try lr {config.lr / 10:g} instead of {config.lr:g}, or clip_grad 1"


def finite(modules: list[nn.Module]) -> bool:
    """Whether all weights are finite."""
    return all(bool(p.isfinite().all()) for module in modules for p in module.parameters())


def refused_if_exploded(loss: Tensor) -> Tensor:
    """The loss, or NaN if it has exploded: its gradient is then not finite on any process, and all leave it out."""
    return loss * torch.where(loss.detach().abs() < EXPLODED, 1.0, math.nan)


def finite_gradient(modules: list[nn.Module]) -> bool:
    """Whether the gradient is finite; the host waits for the device to know."""
    grads = [p.grad for module in modules for p in module.parameters() if p.grad is not None]
    return bool(torch.stack([grad.detach().abs().sum() for grad in grads]).isfinite().all()) if grads else True


def about_skipped(skipped: Sequence[tuple[str, str]], out: str | None) -> Iterator[str]:
    """One line about the files that are not used: how many, why, and where they are listed."""
    if not skipped:
        return
    reasons = Counter(reason for _, reason in skipped)
    why = "; ".join(f"{count} {reason}" for reason, count in reasons.most_common(REASONS))
    more = f"; {len(reasons) - REASONS} other reasons" if len(reasons) > REASONS else ""
    files = "1 file" if len(skipped) == 1 else f"{len(skipped):,} files"
    where = f", listed in {out}/skipped.tsv" if out else ""
    yield f"{files} skipped ({why}{more}){where}; replace or remove them"


def about_data(data: SSLData, out: str | None) -> Iterator[str]:
    """Warnings that the data give rise to before the first step; `out` is the run folder."""
    dataset = data.dataset
    yield from about_skipped(dataset.skipped, out)
    pictures = dataset.bank.source if dataset.bank else dataset
    if pictures.test is None:
        return
    rows = np.unique(np.concatenate([data.split.labeled, data.split.pool, data.split.held_out]))
    seen, first = overlap(pictures.train, rows, pictures.test)
    if seen:
        where = f", such as {first}" if first else ""
        yield (
            f"{seen:,} of {len(pictures.test):,} {dataset.evaluated_on} images are also training images{where}; "
            "the error is too low: remove them from one of the two"
        )


def overlap(train: Examples, rows: np.ndarray, test: Examples) -> tuple[int, str]:
    """How many test examples are among these training rows, by their content, and the name of the first."""
    if train.x.nbytes + test.x.nbytes > MOST_BYTES:
        return 0, ""
    known = {_digest(train.x[row]) for row in rows}
    found = [row for row in range(len(test)) if _digest(test.x[row]) in known]
    return len(found), str(test.names[found[0]]) if found and test.names is not None else ""


def _digest(row: np.ndarray) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(row).data, digest_size=16).digest()


def about_metrics(last: dict[str, Any], steps: int, classes: tuple[str, ...]) -> Iterator[str]:
    """Warnings that the last evaluation gives rise to."""
    if last.get("pseudo_label_coverage") == 0 and steps >= LONG_ENOUGH:
        yield (
            "no pseudo label was used since the evaluation before the last, so the unlabeled images had no effect; "
            "lower the method's threshold, train longer, or show more labels"
        )
    if (name := only_class(last, classes)) is not None:
        yield f"the model answers {name!r} for every image; lower lr, show more labels, or choose another method"


def only_class(last: dict[str, Any], classes: tuple[str, ...]) -> str | None:
    """The class of every test image or, without a test set, of nearly every pseudo label; None if there are more."""
    errors = last.get("error_per_class")
    if errors:
        right = [i for i, error in enumerate(errors) if error == 0]
        others = [error for error in errors if error != 0 and error is not None and error == error]
        return classes[right[0]] if len(right) == 1 and others and min(others) == 1 else None
    shares = last.get("pseudo_label_share_per_class") or [0]
    return classes[int(np.argmax(shares))] if max(shares) > 0.999 else None


def about_evaluations(recorded: list[dict[str, Any]], steps: int, every: int) -> Iterator[str]:
    """A warning if metrics.jsonl lacks evaluations that the run has made."""
    have = {line["step"] for line in recorded}
    lost = [step for step in [*range(every, steps, every), steps] if step not in have]
    if lost:
        shown = ", ".join(map(str, lost[:5])) + (", …" if len(lost) > 5 else "")
        yield f"metrics.jsonl lost {len(lost)} evaluations (step {shown}); the curves of the report have gaps"
