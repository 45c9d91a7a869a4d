"""The bank of embedded views that cells share: a process opens it once and then trains many heads on it."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache

import numpy as np

from vcc_infuse.bank.embed import embed_data
from vcc_infuse.data.dataset import Dataset, Examples
from vcc_infuse.data.split import from_given_labels
from vcc_infuse.data.ssl_data import SSLData, load

from .cell import Cell, arguments_of
from .datasets import locate

SOURCE_OPTIONS = ("data", "root", "size", "mode", "cache")
BANK_OPTIONS = {*SOURCE_OPTIONS, "preset", "flip", "subset", "model", "bank"}
"""All that a bank depends on; `subset` says how many images of each part are embedded."""


def bank_key(cell: Cell, data_root: str | None = None) -> str | None:
    """The options that the bank of a cell depends on, as text; None for cells that are trained on images."""
    if not cell.on_bank:
        return None
    recipe = {name: value for name, value in cell.options.items() if name.partition(".")[0] in BANK_OPTIONS}
    return json.dumps({**recipe, **locate(str(recipe["data"]), data_root)}, sort_keys=True)


@lru_cache(maxsize=1)
def open_bank(key: str) -> Dataset:
    """The bank of these options, embedded as far as it is not yet in the cache folder."""
    options = json.loads(key)
    images = load(**{name: options[name] for name in SOURCE_OPTIONS if name in options}, progress=True)
    images = replace(images, flip=options.get("flip", images.flip))
    images = subset(images, **arguments_of(options, "subset"))
    config = Cell(options).config()
    data = SSLData(images, from_given_labels(images.train.y))
    return embed_data(data, config.build("model"), config.bank, cache=config.cache).dataset


def subset(images: Dataset, *, train: int | None = None, test: int | None = None) -> Dataset:
    """At most so many images of each part, the same ones in every run."""
    smaller = replace(images, train=drawn(images.train, train))
    return smaller if smaller.test is None else replace(smaller, test=drawn(smaller.test, test))


def drawn(examples: Examples, count: int | None) -> Examples:
    """Random rows in their order."""
    if count is None or count >= len(examples):
        return examples
    rows = np.sort(np.random.default_rng(0).permutation(len(examples))[:count])
    names = None if examples.names is None else [examples.names[row] for row in rows]
    return Examples(examples.x[rows], examples.y[rows], names)
