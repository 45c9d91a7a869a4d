"""Pictures in a folder or zip as a dataset, or, for prediction, as a plain array."""

from pathlib import Path
from typing import Any

import numpy as np

from .cache import Allocate, cached
from .dataset import Dataset, Examples
from .layout import read_layout
from .moments import moments
from .pixels import Size, check_options
from .reading import Groups, Skipped, read_groups
from .store import Store, open_store


def load_folder(
    path: str | Path,
    size: int | None = None,
    mode: str = "auto",
    cache: str | None = None,
    progress: bool = False,
) -> Dataset:
    """A dataset from train/<class> + test/<class>, labeled/<class> + unlabeled + test/<class>, or <class>.

    Class folders alone give one fifth of every class to the test set, the same fifth whatever the seed.
    Pictures are decoded once and kept in the cache folder; unreadable ones are listed in `skipped`.
    """
    check_options(size, mode)
    with open_store(Path(path)) as store:
        key = [type(store).__name__, store.fingerprint(), size, mode]
        arrays, facts = cached(key, cache, lambda make: _build(store, str(path), size, mode, make, progress))
    return Dataset(
        _examples(arrays["train"], facts["train"]),
        _examples(arrays["test"], facts["test"]),
        tuple(facts["classes"]),
        tuple(facts["mean"]),
        tuple(facts["std"]),
        name=Path(path).resolve().name.removesuffix(".zip"),
        skipped=tuple((name, reason) for name, reason in facts["skipped"]),
        fixed=facts["fixed"],
    )


def read_images(path: str | Path, size: Size = None, mode: str = "auto") -> tuple[np.ndarray, list[str], Skipped]:
    """All pictures of a folder, zip or file, whatever the class: uint8 N×H×W×C, names, those left out."""
    check_options(size, mode)
    with open_store(Path(path)) as store:
        groups: Groups = {"all": [(name, None) for name in store.images()]}
        read = read_groups(store, groups, str(path), size, mode, lambda _, shape: np.empty(shape, np.uint8))
    return read.arrays["all"], [name for name, _ in read.groups["all"]], read.skipped


def _build(store: Store, path: str, size: int | None, mode: str, allocate: Allocate, progress: bool) -> dict[str, Any]:
    """Decode everything; the facts hold a (name, label) pair for every row."""
    layout = read_layout(store.stamps, path)
    groups = {"train": layout.train, "test": layout.test}
    read = read_groups(store, groups, path, size, mode, allocate, progress)
    mean, std = moments(read.arrays["train"])
    number = {None: -1} | {c: i for i, c in enumerate(layout.classes)}
    rows = {group: [(name, number[c]) for name, c in items] for group, items in read.groups.items()}
    facts = {"classes": layout.classes, "fixed": layout.fixed, "mean": mean, "std": std}
    return rows | facts | {"skipped": read.skipped}


def _examples(x: np.ndarray, rows: list[tuple[str, int]]) -> Examples:
    """The array may be longer than its rows, by the pictures that turned out broken."""
    names, y = zip(*rows, strict=True)
    return Examples(x[: len(rows)], np.array(y, np.int64), names)
