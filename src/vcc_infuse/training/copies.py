"""Near copies among the labels of a run on a bank, so that no split of the labels tears them apart."""

from __future__ import annotations

import numpy as np
import torch

from ..bank.bank import Bank
from ..data.dataset import channel_mean_std
from ..data.ssl_data import SSLData
from ..pool_audit import find_duplicates, perceptual_hashes
from ..utils.device import unit_features
from ..utils.neighbors import has_graph

HASH_BITS = 2  # drawings on plain ground have similar hashes: ten bits would group a tenth of MNIST
CONFIRM_BITS = 16  # unrelated images differ by about 26, crops of nine tenths by up to 12
MOST = 20_000  # labels that are compared without the extra `faiss`: more take minutes


def known_rows(data: SSLData) -> np.ndarray:
    """Training rows whose label is known to the run, shown or kept for validation, ascending."""
    held = data.dataset.validation
    return np.sort(data.split.labeled if held is None else np.concatenate([data.split.labeled, held]))


def group_copies(data: SSLData, bank: Bank) -> SSLData:
    """The data with groups of near copies, given the bank of its images, whose plain views are compared."""
    rows = known_rows(data)
    plain = bank.features["train"][:, 0]
    mean, std = (torch.tensor(values) for values in channel_mean_std(plain))
    return keep_together(data, unit_features(torch.from_numpy(np.array(plain[rows])), mean, std).half().numpy())


def keep_together(data: SSLData, features: np.ndarray) -> SSLData:
    """The data with near copies among the known labels as groups, and validation images drawn by them.

    Args:
        data: images, with no groups yet.
        features: of `known_rows`, of unit length, (labels, width).
    """
    rows = known_rows(data)
    if len(rows) > MOST and not has_graph():
        return data
    images = data.dataset.train.x
    hashes = None
    if images.shape[-1] in (1, 3):
        pixels = (np.asarray(images[row]) for row in rows)
        hashes = perceptual_hashes(image[..., 0] if image.shape[-1] == 1 else image for image in pixels)
    copies = find_duplicates(features, hashes=hashes, hash_bits=HASH_BITS, confirm_bits=CONFIRM_BITS)
    if not len(copies.extra()):
        return data
    groups = np.arange(len(data.dataset.train))
    groups[rows] = rows[copies.group]
    return data.regrouped(groups)
