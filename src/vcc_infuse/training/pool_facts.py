"""What frozen features say before the first step: class shares of the pool, foreign rows, and doubtful labels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ..algorithms import Balance, SelfTraining
from ..algorithms.self_training import alike
from ..calibrators import Evidence
from ..data.ssl_data import SSLData
from ..errors import UserError
from ..pool_audit import KnownRows, find_doubtful_labels, find_unknown, fit_ridge, known_share, unit_rows
from ..pool_audit.audit import DOUBT
from ..pool_audit.shares import shares_by_em
from ..selectors import AlignedINFUSE

FEWEST = 10  # labels of every class: with four the estimate cost accuracy, with two EM gives whole classes to others
MOST = 20_000  # rows of the pool that shares are estimated on
USUAL = 0.2  # p-value from which on a row counts in full
LEAST = 0.1  # of the weight of any row: with few labels p-values are rough, and nothing is filtered
RAMP = (0.25, 0.5)  # of the run in which weights fall from 1: pseudo labels are better judges than distances at first


def pool_features(data: SSLData, option: str, most: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Rows of unit length of the pool, about `most` of them, and of the labels, from plain views or vectors."""
    x = data.dataset.train.x
    if x.ndim == 4:
        raise UserError(f"{option} needs features of a frozen network; train with the preset frozen")
    plain = x[:, 0] if x.ndim == 3 else x
    chosen = data.split.pool
    pool = np.asarray(plain[chosen if most is None else chosen[:: -(-len(chosen) // most)]])
    return unit_rows(pool), unit_rows(np.asarray(plain[data.split.labeled]), reference=pool)


def asked_shares(parts: Iterable[object], data: SSLData, label_counts: Tensor) -> Tensor | None:
    """The class shares of the pool if a part asks for them; "auto" asks where features and enough labels tell them.

    SelfTraining weighs the estimate against the labels itself, so a few of them are enough. Its shares are parts of the
    whole pool: they leave out what seems to be of no class.
    """
    parts = list(parts)
    asked = [part.shares for part in parts if isinstance(part, Balance | Evidence | AlignedINFUSE)]
    features = data.dataset.train.x.ndim < 4
    if "estimated" in asked or ("auto" in asked and features and bool(label_counts.min() >= FEWEST)):
        return estimated_shares(data)
    quotas = any(isinstance(part, SelfTraining) and part.shares == "auto" for part in parts)
    return quota_estimate(data) if quotas and features and label_counts.max() > 1 else None


def estimated_shares(data: SSLData) -> Tensor:
    """The class shares of the pool, (classes,), by EM on a ridge head; a class without labels has none."""
    pool, labeled = pool_features(data, "shares estimated", MOST)
    y = data.labeled_y
    classes = len(data.dataset.classes)
    probs = fit_ridge(labeled, y, classes).probs(pool)
    return torch.from_numpy(shares_by_em(probs, np.bincount(y, minlength=classes) / len(y))).float()


def quota_estimate(data: SSLData) -> Tensor:
    """What `SelfTraining` is told of the class shares of the unlabeled pool; they leave out what seems of no class.

    With about as many labels of each class they are estimated by EM. With uneven labels EM goes astray: a head that
    prefers frequent classes finds more of them. Then they are counts of predictions that no class is preferred in.
    """
    rows = np.setdiff1d(data.split.pool, data.split.labeled)
    counts = np.bincount(data.labeled_y, minlength=len(data.dataset.classes))
    if not len(rows):
        return estimated_shares(data)
    pool, labeled = pool_features(SSLData(data.dataset, replace(data.split, pool=rows)), "shares auto", MOST)
    y = data.labeled_y
    known = KnownRows.of(labeled, y)
    head = fit_ridge(labeled, y, len(counts))
    part = known_share(known.judge(pool).score, head.scores(pool).argmax(1), known.own, y)
    if alike(counts):
        return part * estimated_shares(data)
    predicted = (head.probs(pool) * np.where(counts > 0, 1 / np.maximum(counts, 1), 0)).argmax(1)
    return part * torch.from_numpy(np.bincount(predicted, minlength=len(counts)) / len(pool)).float()


def open_set_weights(data: SSLData) -> Tensor:
    """How much each row of the pool counts late in a run, with mean 1, (pool,): in proportion to its p-value."""
    pool, labeled = pool_features(data, "open_set auto")
    p = find_unknown(pool, labeled, data.labeled_y).p
    p[np.isin(data.split.pool, data.split.labeled)] = 1
    weights = np.clip(p / USUAL, LEAST, 1)
    return torch.from_numpy(weights / weights.mean()).float()


def trusted_labels(data: SSLData) -> SSLData:
    """The data without labels that are more likely wrong than right, judged by the others; their images join the pool.

    A lower weight would not do: a head learns its few labels by heart, whatever they weigh. A class whose labels are
    all in doubt keeps them.
    """
    _, labeled = pool_features(data, "doubt weigh")
    y = data.labeled_y
    wrong = np.nan_to_num(find_doubtful_labels(labeled, y, classes=len(data.dataset.classes)).p_wrong) > DOUBT
    wrong &= np.isin(y, y[~wrong])
    kept = data.split.labeled[~wrong]
    first = kept[np.isin(kept, data.split.pool)]
    rest = np.setdiff1d(np.union1d(data.split.pool, data.split.labeled[wrong]), first)
    return SSLData(data.dataset, replace(data.split, labeled=kept, pool=np.concatenate([first, rest])))


def about_doubt(before: SSLData, after: SSLData) -> Iterator[str]:
    """Which labels weigh nothing, for the screen and the summary."""
    doubted = np.setdiff1d(before.split.labeled, np.concatenate([after.split.labeled, after.split.held_out]))
    if len(doubted):
        names = before.dataset.train.names
        such = "" if names is None else f", such as that of {names[doubted[0]]}"
        labels = f"{len(doubted):,} of {len(before.split.labeled):,} labels"
        yield f"{labels} are more likely wrong than right and weigh nothing{such}; vcc-infuse audit lists such labels"


def late(weights: Tensor, progress: float) -> Tensor:
    """Weights as they are at a fraction of the run: 1 at first, then falling to their values."""
    start, end = RAMP
    share = min(max((progress - start) / (end - start), 0.0), 1.0)
    return 1 + share * (weights - 1)
