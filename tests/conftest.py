"""Shared fixtures. One thread a process: the tests run beside each other, and tiny tensors gain nothing from more."""

import os
import resource

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

from vcc_infuse import SSLData
from vcc_infuse.data.split import balanced
from vcc_infuse.data.ssl_data import load
from vcc_infuse.models import Timm

torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory):
    """No test reads or fills the user's cache."""
    os.environ["VCC_INFUSE_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session", autouse=True)
def _float32():
    """What `auto` computes in does not depend on the machine that runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
        patch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
        yield


def pytest_terminal_summary(terminalreporter, config):
    """Wall time says how busy the machine was, CPU time how much the tests cost."""
    if hasattr(config, "workerinput"):
        return
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    seconds = sum(part.ru_utime + part.ru_stime for part in usage)
    terminalreporter.write_line(f"CPU time: {seconds / 60:.1f} minutes, of all processes together")


@pytest.fixture
def small_photos(monkeypatch):
    """Pretrained networks see photos at 64 pixels instead of 224 and more, and none is exported on a busy machine."""
    monkeypatch.setattr("vcc_infuse.bank.onnx_engine.WORTH", float("inf"))
    monkeypatch.setattr(Timm, "native_size", lambda network: 64)


@pytest.fixture
def few_digits(monkeypatch):
    """A fourth of the digits, where a whole pool is embedded."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    monkeypatch.setattr("sklearn.datasets.load_digits", lambda **_: (images[:450], labels[:450]))


@pytest.fixture(scope="session")
def digits() -> SSLData:
    """Handwritten digits with 40 labels."""
    dataset = load("digits")
    return SSLData(dataset, balanced(dataset.train.y, 40, 10, 0))
