"""The bank of embedded views that cells share: a process opens it once and then trains many heads on it."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache

import numpy as np
import torch

from vcc_infuse.bank.bank import BankConfig
from vcc_infuse.bank.embed import embed_data
from vcc_infuse.data.dataset import Dataset, Examples
from vcc_infuse.data.loading import load
from vcc_infuse.data.split import from_given_labels
from vcc_infuse.data.ssl_data import SSLData
from vcc_infuse.models import Backbone
from vcc_infuse.utils.serialization import from_config

from .cell import Options, arguments_of, component

SOURCE_OPTIONS = ("data", "root", "size", "mode", "cache")
BANK_OPTIONS = {*SOURCE_OPTIONS, "flip", "subset", "model", "bank"}
"""All that a bank depends on; `subset` says how many images of each part are embedded."""


def bank_config(options: Options) -> BankConfig | None:
    """The views of the bank that a cell is trained on; None for cells that are trained on images."""
    arguments = arguments_of(options, "bank")
    return BankConfig(**arguments) if arguments else None


def bank_key(options: Options) -> str | None:
    """The options that a bank depends on, as text; None for cells that are trained on images."""
    if bank_config(options) is None:
        return None
    recipe = {name: value for name, value in options.items() if name.partition(".")[0] in BANK_OPTIONS}
    return json.dumps(recipe, sort_keys=True)


@lru_cache(maxsize=1)
def open_bank(key: str) -> Dataset:
    """The bank of these options, embedded as far as it is not yet in the cache folder."""
    options = json.loads(key)
    images = load(**{name: options[name] for name in SOURCE_OPTIONS if name in options}, progress=True)
    images = replace(images, flip=options.get("flip", images.flip))
    images = subset(images, **arguments_of(options, "subset"))
    data = SSLData(images, from_given_labels(images.train.y))
    with torch.random.fork_rng([]):
        torch.manual_seed(0)  # so that a network without pretrained weights is the same in every process
        encoder = from_config(component(options, "model"), Backbone)
        return embed_data(data, encoder, bank_config(options), cache=options.get("cache")).dataset


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
