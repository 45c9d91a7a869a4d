"""Groups of pictures read into one array each, leaving out those that are broken."""

from collections import Counter
from typing import NamedTuple

import numpy as np

from ..errors import UserError
from .cache import Allocate
from .decode import Header, common_shape, decode, read_headers, threads_for
from .layout import Item
from .paths import EXTENSIONS
from .pixels import Size
from .store import Store

Groups = dict[str, list[Item]]
Skipped = list[tuple[str, str]]  # name, reason


class Pictures(NamedTuple):
    """What could be read: an array and the items of its rows for every group; and what could not."""

    arrays: dict[str, np.ndarray]
    groups: Groups
    skipped: Skipped


def read_groups(
    store: Store, groups: Groups, path: str, size: Size, mode: str, allocate: Allocate, progress: bool = False
) -> Pictures:
    """Decode every group into an array of its own, all of one size and mode."""
    headers: list[Header] = []
    read = Pictures({}, {}, [])
    for group, items in groups.items():
        found = read_headers(store, [name for name, _ in items], progress)
        headers += found
        read.groups[group] = _drop(items, {i: h.reason for i, h in enumerate(found) if h.reason}, read.skipped)
    _check_enough(groups, read, path)
    shape = common_shape(headers, size, mode)
    threads = threads_for(sum(h.size[0] * h.size[1] for h in headers) / len(headers))
    for group, items in read.groups.items():
        out = allocate(group, (len(items), *shape))
        bad = decode(store, [name for name, _ in items], out, threads, progress)
        read.groups[group] = _drop(items, bad, read.skipped)
        read.arrays[group] = _move_up(out, bad)
    _check_enough(groups, read, path)
    read.skipped.sort()
    return read


def _drop(items: list[Item], bad: dict[int, str], skipped: Skipped) -> list[Item]:
    skipped += [(items[row][0], reason) for row, reason in bad.items()]
    return [item for row, item in enumerate(items) if row not in bad]


def _move_up(x: np.ndarray, bad: dict[int, str]) -> np.ndarray:
    """Close the gaps in place, because the array may be a file larger than memory."""
    if bad:
        for new, old in enumerate(row for row in range(len(x)) if row not in bad):
            x[new] = x[old]
    return x[: len(x) - len(bad)]


def _check_enough(before: Groups, read: Pictures, path: str) -> None:
    """A few broken files are left out; losing a whole class or most files is a mistake worth stopping for."""
    total = sum(map(len, before.values()))
    if not total:
        raise UserError(f"{path}: no images found (looked for {' '.join(EXTENSIONS)})")
    if 2 * len(read.skipped) > total:
        name, reason = read.skipped[0]
        raise UserError(f"{path}: {len(read.skipped)} of {total} images cannot be read, first {name} ({reason})")
    for group in before:
        left = Counter(c for _, c in read.groups[group])
        for _, c in before[group]:
            if not left[c]:
                raise UserError(f"{path}: no {c or 'unlabelled'!r} image ({group}) can be read; replace them")
