"""What frozen features say before the first step: class shares of the pool, foreign rows, and doubtful labels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ..data.ssl_data import SSLData
from ..errors import UserError
from ..pool_audit import find_doubtful_labels, find_unknown, fit_ridge, unit_rows
from ..pool_audit.audit import DOUBT
from ..pool_audit.shares import shares_by_em

USUAL = 0.2  # p-value from which on a row counts in full
LEAST = 0.1  # of the weight of any row: with few labels p-values are rough, and nothing is filtered
RAMP = (0.25, 0.5)  # of the run in which weights fall from 1: pseudo labels are better judges than distances at first


def pool_features(data: SSLData, option: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows of unit length of the pool and of the labels, from plain views of a bank or from vectors."""
    x = data.dataset.train.x
    if x.ndim == 4:
        raise UserError(f"{option} needs features of a frozen network; train with the preset frozen")
    plain = x[:, 0] if x.ndim == 3 else x
    pool = np.asarray(plain[data.split.pool])
    return unit_rows(pool), unit_rows(np.asarray(plain[data.split.labeled]), reference=pool)


def estimated_shares(data: SSLData) -> Tensor:
    """The class shares of the pool, (classes,), by EM on a ridge head; a class without labels has none."""
    pool, labeled = pool_features(data, "shares estimated")
    y = data.labeled_y
    classes = len(data.dataset.classes)
    probs = fit_ridge(labeled, y, classes).probs(pool)
    return torch.from_numpy(shares_by_em(probs, np.bincount(y, minlength=classes) / len(y))).float()


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
