"""What a run measures and warns of: running sums between two evaluations, the metrics of each, the summary; hints.

Rates are fractions of 1.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..data.dataset import Examples
from ..data.ssl_data import SSLData
from ..inference.evaluate import chunks, evaluate, name_classes
from ..pool_audit.curve import curve_in_passing
from ..runs.fingerprint import row_digests
from ..runs.folder import versions
from ..types import Losses
from ..utils.progress import phase
from .config import TrainConfig
from .copies import copied_tests

if TYPE_CHECKING:
    from .state import TrainState

LONG_ENOUGH = 100  # steps after which a run without a pseudo label is worth a warning
REASONS = 3
MOST_ADVICE = 3  # classes that the advice names
SHOWS = 5  # test images of a class that is never answered
FAR_ABOVE = 1.5  # times the error of the other classes: what a class must exceed to be named
MOST_BYTES = 2**32  # of images that are compared; reading more takes longer than a warning is worth


class TrainingStats:
    """Sums since the last `reset`; only reading them synchronizes with the device.

    Rows of `pseudo`, one column per pseudo class: seen, selected weight, selected weight with known truth, and with a
    right label; `total` is their sums over the whole run. Without `checked`, because no label of the pool is both known
    and hidden, there is no precision.
    """

    def __init__(
        self, classes: int, device: torch.device | str = "cpu", checked: bool = True, *, processes: int = 1
    ) -> None:
        self.classes = classes
        self.processes = processes
        self.device = device
        self.checked = checked
        self.total = torch.zeros(4, device=device, dtype=torch.float64)
        self.pseudo = torch.zeros(4, classes, device=device, dtype=torch.float64)
        self.reset()

    def reset(self) -> None:
        """Start over, except for the totals of the run."""
        self.total += self.processes * self.pseudo.sum(1)  # which is a mean over processes
        self.steps = 0
        self.losses: dict[str, Tensor] = {}
        self.pseudo = torch.zeros(4, self.classes, device=self.device, dtype=torch.float64)

    @torch.no_grad()
    def add(self, losses: Losses, truth: Tensor) -> None:
        """Add one optimizer step's terms and pseudo labels; truth is −1 where unknown."""
        for name, term in losses.items():
            self.losses[name] = self.losses.get(name, torch.zeros((), device=self.device)) + term.detach().float()
        if losses.pseudo is None:
            return
        labels = losses.pseudo.labels
        weights = losses.pseudo.weights.double()
        known = weights * (truth >= 0)
        right = known * (labels == truth)
        rows = torch.stack([torch.ones_like(weights), weights, known, right])
        self.pseudo.index_add_(1, labels.to(self.pseudo.device), rows.to(self.pseudo.device))

    def read(self) -> dict[str, Any]:
        """Mean losses, and coverage and precision of the pseudo labels, overall and per pseudo class."""
        count = max(self.steps, 1)
        figures: dict[str, Any] = {f"loss_{name}": float(total) / count for name, total in self.losses.items()}
        seen, selected, known, right = self.pseudo.cpu()
        if seen.sum() > 0:
            figures["pseudo_label_coverage"] = float(selected.sum() / seen.sum())
            figures["pseudo_label_share_per_class"] = (seen / seen.sum()).tolist()
            figures["pseudo_label_coverage_per_class"] = (selected / seen).tolist()
        if seen.sum() > 0 and self.checked:
            figures["pseudo_label_precision"] = float(right.sum() / known.sum())
            figures["pseudo_label_precision_per_class"] = (right / known).tolist()
        return figures

    def read_total(self) -> dict[str, float]:
        """Over the run until the last `reset`: wrong labels as a share of all pool rows seen, and of the trusted ones.

        Both are of rows whose truth is known; the second is missing where nothing was trusted.
        """
        seen, selected, known, right = self.total.tolist()
        if not (self.checked and seen):
            return {}
        error = {"trusted_error": 1 - right / known} if known else {}
        return {"trusted_and_wrong": (selected / seen) * error.get("trusted_error", 0.0), **error}

    def state_dict(self) -> dict[str, Any]:
        """Everything, for a checkpoint."""
        tensors = {"pseudo": self.pseudo.clone(), "total": self.total.clone()}
        return {"steps": self.steps, "losses": dict(self.losses), **tensors}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where the checkpoint was."""
        self.steps = state["steps"]
        self.losses = dict(state["losses"])
        self.pseudo = state["pseudo"]
        self.total = state["total"]


def collect_metrics(state: TrainState, done: int, config: TrainConfig) -> dict[str, Any]:
    """Training metrics since the last call and, on the first process, those of the test set, after `done` steps."""
    state.sync_stats()
    metrics: dict[str, Any] = {"step": done, "seconds": state.counters.train_seconds, **state.stats.read()}
    state.stats.reset()
    if not state.main:
        return metrics
    test = state.data.dataset.test
    if test is not None:
        counts = state.task.label_counts
        metrics |= evaluate(state.classifier(), state.calibrator, test, state.views, state.device, config.bins, counts)
        metrics |= {"evaluated_on": state.data.dataset.evaluated_on, "evaluated_images": len(test)}
        state.counters.best_error = min(state.counters.best_error, metrics["error"])
    if (thresholds := state.algorithm.class_thresholds()) is not None:
        metrics["threshold_per_class"] = torch.as_tensor(thresholds).expand(state.task.classes).tolist()
    return metrics


def summarize(state: TrainState, last: dict[str, Any], config: TrainConfig) -> dict[str, Any]:
    """The contents of summary.json; rates are fractions of 1."""
    task = state.task
    dataset = state.data.dataset
    bank = dataset.bank
    encoder = bank.encoder if bank else state.model.backbone
    shape = dataset.images.shape
    batch = task.batch_size + task.unlabeled_batch_size * bool(state.algorithm.views)
    seen = task.steps * batch or task.labeled + task.pool  # a method without steps looks at everything once
    metrics = {name: value for name, value in last.items() if name not in ("step", "seconds")}
    metrics |= about_handed_out(state, last, config)
    named = name_classes(metrics, dataset.classes, task.label_counts.tolist())
    return {
        **dict.fromkeys(("evaluated_on", "pseudo_label_coverage", "pseudo_label_precision")),
        "abstain": [],
        **named,
        "advice": list(about_classes(named["per_class"])),
        **({} if dataset.test is None else {"error_best": state.counters.best_error}),
        **({} if state.probe_error is None else {"error_probe": state.probe_error}),
        **state.stats.read_total(),
        **state.calibrator.promise,
        **about_more_labels(state, config),
        "steps": task.steps,
        "seconds_train": state.counters.train_seconds,
        "seconds_embed": bank.seconds if bank else 0.0,
        "seconds_select": state.coreset_scheduler.seconds,
        "images_per_second": seen / max(state.counters.train_seconds, 1e-9),
        "peak_rss_mb": peak_memory(),
        "coreset_size": state.coreset_scheduler.budget,
        "labels": task.labeled,
        "preset": config.preset,
        "encoder": getattr(encoder, "name", None) or type(encoder).__name__,
        "input_size": getattr(encoder, "input_size", None) or (shape[0] if len(shape) == 3 else None),
        "seed": config.seed,
        "classes": list(dataset.classes),
        "skipped_images": len(dataset.skipped),
        "warnings": list(state.counters.warnings),
        "bins": config.bins,
        "processes": state.world,
        "precision": state.accelerator.mixed_precision,
        "versions": versions(),
    }


def about_handed_out(state: TrainState, last: dict[str, Any], config: TrainConfig) -> dict[str, Any]:
    """What cross-validation chose, its metrics, and the error of the method itself; nothing without it."""
    chosen = state.handed_out
    if chosen is None:
        return {}
    figures = {"handed_out": chosen.mix.name, "cross_validated": chosen.cross_validated}
    test = state.data.dataset.test
    if test is None:
        return figures
    counts = state.task.label_counts
    metrics = evaluate(chosen.model, chosen.calibrator, test, state.views, state.device, config.bins, counts)
    return {**metrics, "error_method": last["error"], **figures}


def about_more_labels(state: TrainState, config: TrainConfig) -> dict[str, Any]:
    """What more labels would bring a linear head; on a bank, which answers in seconds, and where there is a report."""
    data = state.data
    if data.dataset.bank is None or not config.report:
        return {}
    with phase("estimating what more labels would bring", shown=config.progress):
        views = chunks(data.dataset.train.x, state.views, state.device, rows=data.split.labeled)
        features = torch.cat([view.cpu() for view in views]).numpy()
        return {"learning_curve": curve_in_passing(features, data.labeled_y, state.task.classes)}


def peak_memory() -> float | None:
    """The largest resident memory of this process so far, in megabytes; None where the system does not say."""
    try:
        import resource  # not on Windows
    except ImportError:
        return None
    unit = 1024**2 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


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


def about_data(data: SSLData, out: str | None, *, near: bool) -> Iterator[str]:
    """Warnings that the data give rise to before the first step; `out` is the run folder.

    With `near`, images to test are also compared with others that only look like them, which takes seconds.
    """
    dataset = data.dataset
    yield from about_skipped(dataset.skipped, out)
    pictures = dataset.images
    if dataset.test is None or pictures.test is None:
        return
    rows = np.unique(np.concatenate([data.split.labeled, data.split.pool, data.split.held_out]))
    seen, first = overlap(pictures.train, rows, pictures.test)
    if seen:
        where = f", such as {first}" if first else ""
        yield (
            f"{seen:,} of {len(pictures.test):,} {dataset.evaluated_on} images are also training images{where}; "
            "the error is too low: remove them from one of the two"
        )
    alike = copied_tests(data, rows) if near else rows[:0]
    if len(alike) > seen:
        where = f", such as {pictures.test.names[alike[0]]}" if pictures.test.names is not None else ""
        yield (
            f"{len(alike):,} of {len(pictures.test):,} {dataset.evaluated_on} images look like copies of training "
            f"images{where}; the error is too low: keep such files together with group_by, or remove them from one of "
            "the two (vcc-infuse audit lists them)"
        )


def overlap(train: Examples, rows: np.ndarray, test: Examples) -> tuple[int, str]:
    """How many test examples are among these training rows, by their content, and the name of the first."""
    if train.x.nbytes + test.x.nbytes > MOST_BYTES:
        return 0, ""
    leaked = np.flatnonzero(np.isin(row_digests(test.x), row_digests(train.x[rows])))
    return len(leaked), str(test.names[leaked[0]]) if len(leaked) and test.names is not None else ""


def about_metrics(
    last: dict[str, Any], steps: int, classes: tuple[str, ...], promise: Mapping[str, float] | None = None
) -> Iterator[str]:
    """Warnings that the last evaluation gives rise to; `promise` is the calibrator's."""
    if last.get("pseudo_label_coverage") == 0 and steps >= LONG_ENOUGH:
        remedy = "lower the method's threshold, train longer, or show more labels"
        if promise:  # then no threshold of the method decides
            remedy = f"show more labels, or promise less than {' '.join(f'{k}={v:g}' for k, v in promise.items())}"
        yield (
            "no pseudo label was used since the evaluation before the last, so the unlabeled images had no effect; "
            + remedy
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


def about_classes(table: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Advice on the classes of `per_class` that fail, the worst first: which, by how much, and what to do."""
    answered = [row["class"] for row in table if row.get("answers")]
    if len(table) < 2 or len(answered) == 1:  # a warning says that there is a single answer
        return
    worst = sorted(table, key=lambda row: (-(row.get("error") or 0), row["labels"]))
    yield from islice(filter(None, (about_class(row, table) for row in worst)), MOST_ADVICE)


def about_class(row: dict[str, Any], table: Sequence[dict[str, Any]]) -> str:
    """Advice on one class; empty if there is none."""
    others = [other for other in table if other is not row]
    typical = float(np.median([other["labels"] for other in others]))
    few = row["labels"] <= typical / 2
    aside = f" (the others about {typical:g})" if few else ""
    name = f"class {row['class']!r}"
    labels = f"{row['labels']} label{'s' * (row['labels'] != 1)}{aside}"
    if row.get("error") is None:
        ignored = row.get("pseudo_label_share") == 0
        pseudo = ", and no unlabeled image is taken for it" if ignored else ""
        return f"{name} has {labels}{pseudo}: label more of it" if few or ignored else ""
    never = not row["answers"] and row["test_images"] >= SHOWS
    if not (never or fails(row, others)):
        return ""
    facts = f"{name} has {labels} and {100 * row['error']:.1f} % error" + (", and is never answered" if never else "")
    if few:
        return f"{facts}: label more of it"
    confused = f"{row['taken_for_images']} of its {row['test_images']} images are taken for {row['taken_for']!r}"
    return f"{facts}; {confused}: look for wrong labels in both classes, and label more of {row['class']!r}"


def fails(row: dict[str, Any], others: Sequence[dict[str, Any]]) -> bool:
    """Whether the error of a class is far above that of the others, by more than chance given the number of classes."""
    images = sum(other["test_images"] for other in others)
    if not row["test_images"] or not images:
        return False
    usual = sum(other["error"] * other["test_images"] for other in others if other["test_images"]) / images
    wrong = round(row["error"] * row["test_images"])
    # Here, because it takes a while to import, and not scipy.stats.binomtest, which takes a second.
    from scipy.special import bdtrc

    chance = bdtrc(wrong - 1, row["test_images"], min(FAR_ABOVE * usual, 1.0))
    return bool(chance < 0.05 / (len(others) + 1))


def about_evaluations(recorded: list[dict[str, Any]], steps: int, every: int) -> Iterator[str]:
    """A warning if metrics.jsonl lacks evaluations that the run has made."""
    lost = sorted({*range(every, steps, every), steps} - {line["step"] for line in recorded})
    if lost:
        shown = ", ".join(map(str, lost[:5])) + (", …" if len(lost) > 5 else "")
        yield f"metrics.jsonl lost {len(lost)} evaluations (step {shown}); the curves of the report have gaps"
