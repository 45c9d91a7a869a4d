"""What a user should know about a run although it went on: skipped files, leaks, pseudo labels without effect."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..data.dataset import Examples
from ..data.ssl_data import SSLData

LONG_ENOUGH = 100  # steps after which a run without a pseudo label is worth a warning
REASONS = 3
MOST_BYTES = 2**32  # of images that are compared; reading more takes longer than a warning is worth


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
    pictures = dataset.images
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
