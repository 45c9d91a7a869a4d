"""Near copies in the data of a run on a bank: labels that no split may tear apart, and images that are also tested."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ..bank.bank import Bank
from ..data.dataset import channel_mean_std
from ..data.ssl_data import SSLData
from ..pool_audit import Duplicates, across_parts, find_duplicates, perceptual_hashes
from ..utils.device import unit_features
from ..utils.neighbors import has_graph

HASH_BITS = 2  # drawings on plain ground have similar hashes: ten bits would group a tenth of MNIST
CONFIRM_BITS = 16  # unrelated images differ by about 26, crops of nine tenths by up to 12
MOST = 20_000  # labels that are compared without the extra `faiss`: more take minutes
STRICT = 0.9  # cosine of gray pictures to test: scans on plain ground resemble each other, and so do their hashes
MOST_ACROSS = 10_000  # images that are compared in passing, those to test included: more take over ten seconds


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
    copies = near_copies(features, [(data.dataset.train.x, rows)])
    if not len(copies.extra()):
        return data
    groups = np.arange(len(data.dataset.train))
    groups[rows] = rows[copies.group]
    return data.regrouped(groups)


def near_copies(features: np.ndarray, pictures: Sequence[tuple[np.ndarray, np.ndarray]]) -> Duplicates:
    """Groups of images by features of unit length, (images, width), and by the hashes of gray and color pictures.

    Args:
        features: of the images, one part after the other.
        pictures: of each part, the images of the data and the rows among them.
    """
    channels = pictures[0][0].shape[-1]
    hashes = None
    if channels in (1, 3):
        images = (np.asarray(x[row]) for x, rows in pictures for row in rows)
        hashes = perceptual_hashes(image[..., 0] if channels == 1 else image for image in images)
    return find_duplicates(features, hashes=hashes, hash_bits=HASH_BITS, confirm_bits=CONFIRM_BITS)


def copied_tests(data: SSLData, rows: np.ndarray) -> np.ndarray:
    """Images to test, ascending, that are near copies of these training images; none where there is no bank.

    Among many images only the labeled ones are compared with them, or none.
    """
    dataset = data.dataset
    if dataset.bank is None or dataset.test is None:
        return np.arange(0)
    rows = rows if len(rows) + len(dataset.test) <= MOST_ACROSS else data.split.labeled
    pictures = dataset.images
    if len(rows) + len(dataset.test) > MOST_ACROSS or pictures.test is None:
        return np.arange(0)
    plain = np.concatenate([dataset.train.x[rows, 0], dataset.test.x[:, 0]])
    mean, std = (torch.tensor(values) for values in (dataset.mean, dataset.std))
    features = unit_features(torch.from_numpy(plain), mean, std).half().numpy()
    tests = np.arange(len(dataset.test))
    if pictures.train.x.shape[-1] == 1:
        copies = find_duplicates(features, threshold=STRICT)
    else:
        copies = near_copies(features, [(pictures.train.x, rows), (pictures.test.x, tests)])
    across = across_parts(copies, np.arange(len(features)) < len(rows))
    return across[across >= len(rows)] - len(rows)
