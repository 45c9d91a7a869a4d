"""Near copies: the same picture resized, cropped, recompressed or brightened, in groups that belong together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..errors import UserError, check_integer, check_range
from ..utils.neighbors import NearestRows, use_graph
from .arrays import blocks, check_features, check_labels, main_directions, unit

if TYPE_CHECKING:
    from PIL.Image import Image

COSINE = 0.8  # results/pools/copies.md
HASH_BITS = 10
LOOSE = 0.4  # cosine that pairs of similar hashes need: flat images have similar hashes, too
PAIR_BLOCK = 2048
CROWDED = 2**16  # pairs of a block above which all of it is compared at once
PENDING = 2**20  # pairs that are collected before groups are joined
SKETCH = 64  # dimensions in which pairs are compared first
EXACT_UP_TO = 20_000  # rows; of more, only likely pairs are compared (results/growth/neighbors.md)
LIKELY = 2**16  # likely pairs that are compared at a time
NEAR = 16  # nearest rows that may be copies
BESIDE = 8  # rows behind a row in an order of hashes that may be copies
TURNS = (0, 16, 32, 48)  # bits from which on hashes are put in order

Pairs = tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Duplicates:
    """Near copies among rows.

    Attributes:
        group: of shape (rows,): the lowest row number of the group, the row's own number if it has no copy.
        partner: the most similar other row, of shape (rows,); −1 if it has no copy.
        similarity: the cosine to it, of shape (rows,); NaN if it has no copy.
    """

    group: np.ndarray
    partner: np.ndarray
    similarity: np.ndarray

    def groups(self) -> list[np.ndarray]:
        """The row numbers of each group of at least two, the largest group first."""
        order = np.argsort(self.group, kind="stable")
        starts = np.flatnonzero(np.diff(self.group[order], prepend=-1))
        parts = [part for part in np.split(order, starts[1:]) if len(part) > 1]
        return sorted(parts, key=lambda part: (-len(part), part[0]))

    def extra(self) -> np.ndarray:
        """Rows that can be left out: all of each group but its first."""
        return np.flatnonzero(self.group != np.arange(len(self.group)))


def find_duplicates(
    features: Any,
    *,
    threshold: float = COSINE,
    hashes: np.ndarray | None = None,
    hash_bits: int = HASH_BITS,
    confirm_bits: int = 64,
    exact_up_to: int = EXACT_UP_TO,
) -> Duplicates:
    """Group rows whose cosine reaches the threshold, in bounded memory.

    All pairs are compared in 65 dimensions first. There the product is an upper bound of the cosine, so that no pair
    is missed and few remain to be compared in full. Of more than `exact_up_to` rows, only the nearest in these
    dimensions and those next to each other in an order of the hashes are compared, which needs the extra `faiss` and
    takes time in proportion to the rows. All pairs that it finds are copies; it may miss a few.

    Args:
        features: of shape (rows, width), as `unit_rows` makes them.
        threshold: of the cosine. Features alone find brighter and cropped copies.
        hashes: what `perceptual_hashes` returned for the same images. Pairs of similar hashes then are copies, too, if
            their cosine is at least 0.4: these are the copies that were resized or compressed.
        hash_bits: of 64 bits, how many may differ, in one of the two hashes.
        confirm_bits: how many may differ in pairs that reach the threshold. Fewer than 64 keep features that tell
            images badly apart from joining different ones.
        exact_up_to: rows of which all pairs are compared.

    >>> find_duplicates([[1.0, 0.0], [0.0, 1.0], [0.99, 0.01]]).group.tolist()
    [0, 1, 0]
    """
    rows = check_features("features", features)
    check_range("threshold", threshold, -1, 1)
    check_integer("hash_bits", hash_bits, 0, 64)
    check_integer("confirm_bits", confirm_bits, 0, 64)
    if hashes is not None and np.shape(hashes) != (len(rows), 2):
        raise UserError(
            f"hashes must have shape ({len(rows)}, 2), as perceptual_hashes returns, got {np.shape(hashes)}"
        )
    group = np.arange(len(rows))
    partner = np.full(len(rows), -1)
    similarity = np.full(len(rows), -np.inf)
    pending: list[np.ndarray] = []
    find_pairs = _likely_pairs if use_graph(len(rows), exact_up_to) else _similar_pairs
    for first, second, cosine in find_pairs(rows, threshold, hashes, (hash_bits, confirm_bits)):
        _note_best(partner, similarity, first, second, cosine)
        pending.append(np.stack([first, second]))
        if sum(pairs.shape[1] for pairs in pending) > PENDING:
            group = _join(group, pending)
            pending = []
    group = _join(group, pending)
    return Duplicates(group, partner, np.where(partner < 0, np.nan, similarity))


def across_parts(duplicates: Duplicates, parts: Any) -> np.ndarray:
    """Rows whose group reaches into another part, such as train and test: a random split would be flattered by them.

    Args:
        duplicates: what `find_duplicates` returned for the rows of all parts.
        parts: the part of each row, as numbers or names, of shape (rows,).

    >>> across_parts(find_duplicates([[1, 0], [1, 0], [0, 1], [0, 1]]), ["train", "test", "train", "train"]).tolist()
    [0, 1]
    """
    _, number = np.unique(np.asarray(parts), return_inverse=True)
    return _mixed_groups(duplicates, check_labels("parts", number, len(duplicates.group)))


def conflicting_labels(duplicates: Duplicates, labels: Any) -> np.ndarray:
    """Labeled rows whose group holds another label, too: at least one of them is wrong. −1 is unlabeled.

    >>> conflicting_labels(find_duplicates([[1, 0], [1, 0], [1, 0], [0, 1]]), [2, -1, 0, 0]).tolist()
    [0, 2]
    """
    given = check_labels("labels", labels, len(duplicates.group), low=-1)
    return _mixed_groups(duplicates, given)


def perceptual_hashes(images: Iterable[Image | np.ndarray]) -> np.ndarray:
    """pHash and dHash of each image, 64 bits each.

    Args:
        images: PIL images, or arrays of shape (height, width) or (height, width, 3) of dtype uint8.

    Returns:
        An array of shape (images, 2), uint64.
    """
    import imagehash
    from PIL import Image

    hashes = []
    for image in images:
        picture = Image.fromarray(image) if isinstance(image, np.ndarray) else image
        bits = [kind(picture).hash.reshape(64) for kind in (imagehash.phash, imagehash.dhash)]
        hashes.append(np.packbits(bits, axis=1).view(np.uint64)[:, 0])
    return np.array(hashes, np.uint64).reshape(-1, 2)


def hash_distance(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Differing bits between hashes of shape (…, 2), by the hash that sees fewer."""
    bits: np.ndarray = np.bitwise_count(first ^ second).min(-1)
    return bits


def _mixed_groups(duplicates: Duplicates, number: np.ndarray) -> np.ndarray:
    """Rows of groups in which at least two different numbers ≥ 0 occur."""
    known = number >= 0
    lowest = np.full(len(number), np.iinfo(np.int64).max)
    highest = np.full(len(number), -1)
    np.minimum.at(lowest, duplicates.group[known], number[known])
    np.maximum.at(highest, duplicates.group[known], number[known])
    return np.flatnonzero(known & (lowest != highest)[duplicates.group])


def _similar_pairs(
    rows: np.ndarray, threshold: float, hashes: np.ndarray | None, bits: tuple[int, int]
) -> Iterator[Pairs]:
    """Pairs (first < second) that are copies, and their cosines, block by block."""
    sketch = _sketch(rows)
    signs = [] if hashes is None else [_signs(hashes[:, kind]) for kind in (0, 1)]
    for left in blocks(len(rows), PAIR_BLOCK):
        for right in blocks(len(rows), PAIR_BLOCK):
            if right.start < left.start:
                continue
            # Rounding errors of the sketch must not lose a pair.
            near = sketch[left] @ sketch[right].T >= threshold - 1e-4
            same_hash = np.zeros_like(near)
            if signs:
                differ = np.minimum(*(32 - signs_of[left] @ signs_of[right].T / 2 for signs_of in signs))
                same_hash = differ <= bits[0]
                near &= differ <= bits[1]
            if left == right:
                near = np.triu(near, 1)
                same_hash = np.triu(same_hash, 1)
            yield from _confirm(rows, left.start, right.start, near, threshold)
            yield from _confirm(rows, left.start, right.start, same_hash, LOOSE)


def _confirm(rows: np.ndarray, top: int, side: int, near: np.ndarray, threshold: float) -> Iterator[Pairs]:
    """The pairs of a block that start at row `top` and `side` whose cosine reaches the threshold."""
    count = int(np.count_nonzero(near))
    if count > CROWDED:  # one product for all, where many pairs must be compared
        product = unit(rows[top : top + near.shape[0]]) @ unit(rows[side : side + near.shape[1]]).T
        first, second = np.nonzero(near & (product >= threshold))
        yield top + first, side + second, product[first, second]
    elif count:
        first, second = np.nonzero(near)
        yield _copies(rows, top + first, side + second, threshold)


def _copies(rows: np.ndarray, first: np.ndarray, second: np.ndarray, threshold: float) -> Pairs:
    """Those of some pairs whose cosine reaches the threshold."""
    cosine = np.empty(len(first), np.float32)
    for part in blocks(len(first)):
        cosine[part] = np.einsum("ij,ij->i", unit(rows[first[part]]), unit(rows[second[part]]))
    kept = cosine >= threshold
    return first[kept], second[kept], cosine[kept]


def _likely_pairs(
    rows: np.ndarray, threshold: float, hashes: np.ndarray | None, bits: tuple[int, int]
) -> Iterator[Pairs]:
    """Pairs that are copies, and their cosines, among those that are likely to be; some come twice."""
    sketch = _sketch(rows).astype(np.float16)
    for first, second in _near_pairs(sketch):
        bound = np.einsum("ij,ij->i", sketch[first], sketch[second], dtype=np.float32)
        near = bound >= threshold - 1e-2  # half precision must not lose a pair
        if hashes is not None and bits[1] < 64:
            near &= hash_distance(hashes[first], hashes[second]) <= bits[1]
        yield _copies(rows, first[near], second[near], threshold)
    if hashes is None:
        return
    for first, second in _pairs_of_hashes(hashes):
        same = hash_distance(hashes[first], hashes[second]) <= bits[0]
        yield _copies(rows, first[same], second[same], LOOSE)


def _near_pairs(sketch: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Each row and its nearest in the sketch, which are no farther there than in full, and exact copies in a chain."""
    search = NearestRows(torch.from_numpy(sketch), exact_up_to=0)
    for part in blocks(len(sketch)):
        near = search.of(torch.from_numpy(sketch[part]), min(NEAR, len(sketch))).numpy()
        first = np.repeat(np.arange(part.start, part.stop), near.shape[1])
        other = first != near.ravel()
        yield first[other], near.ravel()[other]
    # Among more exact copies than links a search may end: in order of any number of theirs they are next to each other.
    yield from _next_to_each_other(np.argsort(sketch.sum(1, dtype=np.float32), kind="stable"), 1)


def _pairs_of_hashes(hashes: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Rows that are next to each other when one of their hashes is put in order from one of four bits on."""
    for column in hashes.T:
        for turn in TURNS:
            turned = (column << np.uint64(turn)) | (column >> np.uint64((64 - turn) % 64))
            yield from _next_to_each_other(np.argsort(turned, kind="stable"), BESIDE)


def _next_to_each_other(order: np.ndarray, reach: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for step in range(1, min(reach, len(order) - 1) + 1):
        for part in blocks(len(order) - step, LIKELY):
            yield order[:-step][part], order[step:][part]


def _signs(hashes: np.ndarray) -> np.ndarray:
    """Bits as ±1, of shape (rows, 64): the product of two rows is 64 minus twice the bits that differ."""
    bits = np.unpackbits(np.ascontiguousarray(hashes).view(np.uint8).reshape(-1, 8), axis=1)
    return 2 * bits.astype(np.float32) - 1


def _sketch(rows: np.ndarray) -> np.ndarray:
    """Coordinates along the main directions and the length of the rest, whose product bounds the cosine from above.

    x · y = Px · Py + Rx · Ry ≤ Px · Py + |Rx| |Ry|, by Cauchy and Schwarz.
    """
    basis = main_directions(rows, SKETCH)
    sketch = np.empty((len(rows), basis.shape[1] + 1), np.float32)
    for part in blocks(len(rows)):
        block = unit(rows[part])
        main = block @ basis
        sketch[part, :-1] = main
        sketch[part, -1] = np.sqrt(np.maximum(np.square(block).sum(1) - np.square(main).sum(1), 0))
    return sketch


def _note_best(
    partner: np.ndarray, similarity: np.ndarray, first: np.ndarray, second: np.ndarray, cosine: np.ndarray
) -> None:
    for row, other in ((first, second), (second, first)):
        order = np.argsort(cosine, kind="stable")  # of several values for one row, assignment keeps the last
        better = order[cosine[order] > similarity[row[order]]]
        similarity[row[better]] = cosine[better]
        partner[row[better]] = other[better]


def _join(group: np.ndarray, pending: list[np.ndarray]) -> np.ndarray:
    """Groups after the collected pairs were joined; each is named by its lowest row."""
    from scipy.sparse import coo_array  # here, because it takes a while to import
    from scipy.sparse.csgraph import connected_components

    if not pending:
        return group
    first, second = group[np.concatenate(pending, axis=1)]
    size = len(group)
    graph = coo_array((np.ones(len(first), bool), (first, second)), (size, size))
    number, part = connected_components(graph, directed=False)
    lowest = np.full(number, size)
    np.minimum.at(lowest, part, np.arange(size))
    joined: np.ndarray = lowest[part][group]
    return joined
