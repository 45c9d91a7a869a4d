"""Shared fixtures. One thread a process: the tests run beside each other, and tiny tensors gain nothing from more."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

from vcc_infuse import SSLData, load
from vcc_infuse.data.split import balanced

torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory):
    """No test reads or fills the user's cache."""
    os.environ["VCC_INFUSE_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def digits() -> SSLData:
    """Handwritten digits with 40 labels."""
    dataset = load("digits")
    return SSLData(dataset, balanced(dataset.train.y, 40, 10, 0))
