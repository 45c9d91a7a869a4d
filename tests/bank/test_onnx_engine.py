"""ONNX Runtime as the engine of frozen networks, against the same network in PyTorch."""

import pickle

import numpy as np
import pytest
import torch
from torch import nn

from vcc_infuse import Predictor, SSLData, train
from vcc_infuse.bank import onnx_engine
from vcc_infuse.bank.bank import BankConfig
from vcc_infuse.bank.embed import embed_data, make_encoder
from vcc_infuse.bank.onnx_engine import CannotExport, OnnxNetwork, choose_engine, onnx_encoder, timm_parts
from vcc_infuse.errors import OptionError, UserError
from vcc_infuse.models import Timm

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """Shared, because an export takes seconds."""
    return str(tmp_path_factory.mktemp("cache"))


def encoder(channels=3, size=32, weights="none"):
    return make_encoder(Timm("test_resnet", weights, size), (20, 20, channels))[0].eval()


def images(count=20, channels=3):
    return np.random.default_rng(0).integers(0, 256, (count, 20, 20, channels), np.uint8)


def labeled_data(count=20):
    return SSLData.from_arrays(images(count), np.where(np.arange(count) < 6, np.arange(count) % 2, -1))


@torch.no_grad()
def test_the_features_are_those_of_pytorch_and_the_encoder_is_not_changed(cache):
    network = encoder()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    fast = onnx_encoder(network, cache=cache)
    x = torch.randn(37, 3, 20, 20)  # resized to 32 before the network, in several batches
    expected = network(x)
    torch.testing.assert_close(fast(x), expected, rtol=1e-4, atol=1e-5)
    assert expected.std(0).max() > 1e-3  # not a constant
    assert isinstance(fast.net, OnnxNetwork)
    assert not isinstance(network.net, OnnxNetwork)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    torch.testing.assert_close(fast(x[:0].new_zeros(1, 3, 20, 20)), network(torch.zeros(1, 3, 20, 20)))


@torch.no_grad()
def test_it_is_exported_once_per_weights_and_size(cache, monkeypatch):
    onnx_encoder(encoder(), cache=cache)
    exported = []
    monkeypatch.setattr(onnx_engine, "_export", lambda part, path: exported.append(path))
    assert onnx_encoder(encoder(), cache=cache) is not None
    assert not exported
    assert onnx_encoder(encoder(size=24), cache=cache, only_cached=True) is None
    other = encoder()
    next(iter(other.net.parameters())).data.add_(0.01)
    assert onnx_encoder(other, cache=cache, only_cached=True) is None


@torch.no_grad()
def test_it_travels_to_machines_without_the_cache(cache):
    network = encoder()
    fast = pickle.loads(pickle.dumps(onnx_encoder(network, cache=cache)))
    x = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(fast(x), network(x), rtol=1e-4, atol=1e-5)


def test_a_bank_has_the_same_features_with_either_engine(cache, tmp_path):
    config = BankConfig(weak=1, strong=1)
    banks = {
        engine: embed_data(labeled_data(), encoder(), config, cache=folder, engine=engine, progress=False)
        for engine, folder in (("torch", str(tmp_path)), ("onnx", cache))
    }
    slow, fast = (np.asarray(banks[engine].dataset.train.x, np.float64) for engine in ("torch", "onnx"))
    cosine = (slow * fast).sum(2) / np.linalg.norm(slow, axis=2) / np.linalg.norm(fast, axis=2)
    assert banks["onnx"].dataset.bank.network.options.engine == "onnx"
    assert banks["torch"].dataset.bank.network.options.engine == "torch"
    assert cosine.min() > 0.99999


def test_auto_exports_where_it_pays_and_uses_what_is_in_the_cache(cache, tmp_path):
    network = encoder()
    onnx_encoder(network, cache=cache)
    assert choose_engine(network, "auto", device=CPU, cache=cache) is not None
    assert choose_engine(network, "auto", device=CPU, seconds=1.0, cache=str(tmp_path)) is None
    assert choose_engine(network, "auto", device=CPU, seconds=1e4, cache=str(tmp_path)) is not None
    assert choose_engine(network, "torch", device=CPU, cache=cache) is None
    assert choose_engine(nn.Linear(2, 2), "auto", device=CPU, seconds=1e4, cache=cache) is None
    assert choose_engine(network, "auto", device=torch.device("cuda"), seconds=1e4, cache=cache) is None


def test_a_network_that_cannot_be_exported_stays_in_pytorch_with_one_line(tmp_path, monkeypatch):
    class Stubborn(nn.Module):
        def forward(self, x):
            return x.mean((2, 3)) if float(x.sum()) > 0 else x.amax((2, 3))  # depends on the values

    network = encoder()
    network.net = Stubborn()
    with pytest.warns(UserWarning, match="runs in PyTorch, which is slower on CPUs: test_resnet cannot be exported"):
        assert choose_engine(network, "auto", device=CPU, seconds=1e4, cache=str(tmp_path)) is None
    with pytest.raises(UserError, match="engine onnx cannot be used: .*; use engine torch"):
        choose_engine(network, "onnx", device=CPU, cache=str(tmp_path))
    with pytest.raises(CannotExport, match="no network of timm"):
        onnx_encoder(nn.Linear(2, 2))
    assert not list(tmp_path.rglob("*.onnx"))


def test_an_export_with_other_features_is_thrown_away(tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_engine.OnnxNetwork, "forward", lambda self, x: torch.randn(len(x), 7).repeat(1, 1))
    network = encoder()
    network.net = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 7))
    with pytest.raises(CannotExport, match=r"its features differ in ONNX Runtime \(cosine"):
        onnx_encoder(network, cache=str(tmp_path))
    assert not list(tmp_path.rglob("*.onnx*"))


def test_a_run_answers_the_same_with_either_engine(cache, tmp_path, monkeypatch):
    monkeypatch.setenv("VCC_INFUSE_CACHE", cache)
    options = {"preset": "frozen", "model": Timm("test_resnet", "none", 32), "steps": 2, "progress": False}
    result = train(labeled_data(), engine="onnx", out=tmp_path / "run", report=False, **options)
    answers = {}
    for engine in ("torch", "onnx", "auto"):
        predictor = Predictor.load(tmp_path / "run", engine=engine)
        answers[engine] = predictor.predict(images()).probs
        assert bool([part for part in timm_parts(predictor._fast_model) if isinstance(part.net, OnnxNetwork)]) == (
            engine != "torch"
        )
    torch.testing.assert_close(answers["onnx"], answers["torch"], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(answers["auto"], answers["onnx"])
    torch.testing.assert_close(result.predictor.predict(images()).probs, answers["torch"], rtol=1e-4, atol=1e-5)


def test_mistakes():
    with pytest.raises(OptionError, match="engine must be one of auto, torch, onnx"):
        embed_data(labeled_data(), encoder(), engine="tensorrt")
    with pytest.raises(UserError, match="engine onnx computes on the CPU, not on cuda"):
        choose_engine(encoder(), "onnx", device=torch.device("cuda"))
