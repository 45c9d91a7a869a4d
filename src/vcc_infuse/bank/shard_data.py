"""Training data from a sharded bank: the rows with labels, and as much of the rest as a run needs."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping

import numpy as np

from ..data.dataset import Dataset
from ..data.split import from_given_labels
from ..data.ssl_data import SSLData
from ..errors import UserError, check_integer
from ..models import Timm
from ..models.concat import network_class
from .bank import Bank
from .sharding import frozen_network
from .shards import Shards

POOL = 100_000


def labeled_shards(
    shards: Shards,
    labels: Mapping[str, str] | str | os.PathLike[str],
    *,
    pool: int = POOL,
    validation: float | None = 0.2,
    seed: int = 0,
) -> SSLData:
    """Rows of a sharded bank to train a head on; the run is saved with the network, and takes images.

    Args:
        shards: a finished bank.
        labels: class names by the names of rows, or a CSV file with the columns file and label.
        pool: of how many rows without a label the pool is drawn.
        validation: share of the labels that is kept to measure on.
        seed: of the draw.

    >>> data = labeled_shards(Shards("bank"), "labels.csv")  # doctest: +SKIP
    >>> vcc_infuse.train(data, preset="frozen", out="runs/x")  # doctest: +SKIP
    """
    given = labels if isinstance(labels, Mapping) else _read_labels(labels)
    found = {row: given[name] for row, name in enumerate(shards.names) if name in given}
    if len(found) < len(given):
        missing = next(iter(set(given) - {shards.name(row) for row in found}))
        raise UserError(f"{len(given) - len(found)} labeled images are not in {shards.folder}, such as {missing}")
    rest = np.setdiff1d(shards.sample(min(len(shards), check_integer("pool", pool, 0) + len(found)), seed), list(found))
    rows = np.sort(np.concatenate([np.array(list(found), np.int64), rest[:pool]]))
    classes = tuple(sorted(set(found.values())))
    y = np.array([classes.index(found[row]) if row in found else -1 for row in rows.tolist()], np.int64)
    data = SSLData(_dataset(shards, rows, y, classes), from_given_labels(y))
    return data if validation is None else data.with_validation(validation)


def _read_labels(path: str | os.PathLike[str]) -> dict[str, str]:
    try:
        with open(path, newline="", encoding="utf-8") as file:
            return {line["file"]: line["label"] for line in csv.DictReader(file) if line["label"]}
    except (OSError, KeyError, UnicodeDecodeError, csv.Error) as fault:
        raise UserError(f"{path} cannot be read as a CSV file with the columns file and label ({fault})") from fault


def _dataset(shards: Shards, rows: np.ndarray, y: np.ndarray, classes: tuple[str, ...]) -> Dataset:
    """Rows of the bank, with its network."""
    recipe = shards.recipe
    network = network_class(Timm, recipe.model)(**recipe.model)
    gray = recipe.shape[2] == 1
    frozen = frozen_network(
        network, size=recipe.shape[0], mode="gray" if gray else "rgb", seed=recipe.seed, flip=recipe.flip,
        augment=recipe.augment,
    )  # fmt: skip
    if frozen.recipe.network != recipe.network:
        raise UserError(f"{shards.folder} was embedded by other weights than {recipe.model['weights']} are now")
    return Bank.of_views(
        shards.rows(rows), y, [shards.name(row) for row in rows.tolist()], classes, encoder=frozen.encoder,
        views=frozen.views, shape=recipe.shape, recipe=recipe.network, name=shards.folder.name,
        slots=(recipe.weak, recipe.strong),
    )  # fmt: skip
