"""Cells on a bank of embedded views: a process opens the bank once and then trains many heads on it."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from vcc_infuse.bank.embed import embed_data
from vcc_infuse.data.dataset import Dataset, Examples
from vcc_infuse.data.loading import choose_split, load
from vcc_infuse.data.split import LongTail, from_given_labels
from vcc_infuse.data.ssl_data import SSLData

from .cell import Options, arguments_of, bank_config, build_part, build_trainer, fit

SOURCE_OPTIONS = ("data", "root", "size", "mode", "cache")
RECIPE = {*SOURCE_OPTIONS, "flip", "subset", "model", "bank"}


def bank_key(options: Options) -> str | None:
    """The options that a bank depends on, as text; None for cells that are trained on images."""
    if bank_config(options) is None:
        return None
    return json.dumps({k: v for k, v in options.items() if k.partition(".")[0] in RECIPE}, sort_keys=True)


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
        embedded = embed_data(data, build_part(options, "model"), bank_config(options), cache=options.get("cache"))
    return embedded.dataset


def subset(images: Dataset, train: int | None = None, test: int | None = None) -> Dataset:
    """At most so many images of each part, the same ones in every run."""
    few = replace(images, train=drawn(images.train, train))
    return few if few.test is None else replace(few, test=drawn(few.test, test))


def drawn(examples: Examples, count: int | None) -> Examples:
    """Random rows in their order."""
    if count is None or count >= len(examples):
        return examples
    rows = np.sort(np.random.default_rng(0).permutation(len(examples))[:count])
    names = None if examples.names is None else [examples.names[row] for row in rows]
    return Examples(examples.x[rows], examples.y[rows], names)


def train_on_bank(options: Options) -> dict[str, Any]:
    """Train the head of one cell; returns its summary, with the seconds that all of it took."""
    key = bank_key(options)
    assert key is not None
    dataset = open_bank(key)
    began, trainer = time.perf_counter(), build_trainer({"progress": False, **options})
    tail = arguments_of(options, "long_tail")
    split = choose_split(
        dataset, labels=options.get("labels"), long_tail=LongTail(**tail) if tail else None,
        include_labeled=options.get("include_labeled"), seed=trainer.config.seed,
        all_labels=trainer.algorithm.all_labels,
    )  # fmt: skip
    summary = fit(trainer, SSLData(dataset, split))
    return {**summary, "seconds": time.perf_counter() - began}
