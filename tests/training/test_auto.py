"""What the preset auto says about fine-tuning: the comparison itself, and when it is made."""

import numpy as np
import pytest
import torch

from vcc_infuse import BankConfig, SSLData, Timm, TrainConfig, embed_data, train
from vcc_infuse.bank.embed import make_encoder
from vcc_infuse.training import auto

NETWORK = dict(name="test_resnet", weights="none", input_size=32)
VIEWS = BankConfig(weak=1, strong=1)


def colored(rows=24, labeled=12):
    """Images of two colors, which even random features tell apart."""
    rng = np.random.default_rng(0)
    y = np.arange(rows) % 2
    x = rng.integers(0, 60, (rows, 32, 32, 3), dtype=np.uint8)
    x[np.arange(rows), :, :, 2 * y] += 150
    return SSLData.from_arrays(x, np.where(np.arange(rows) < labeled, y, -1), x[:8], y[:8])


@pytest.fixture
def embedded(tmp_path):
    def make(data):
        return embed_data(data, Timm(**NETWORK), VIEWS, cache=str(tmp_path), device="cpu", progress=False)

    return make


def test_a_third_of_the_labels_is_predicted_by_both_and_the_frozen_network_stays(embedded):
    data = embedded(colored())
    before = {name: value.clone() for name, value in data.dataset.bank.encoder.state_dict().items()}
    errors = auto.compare_finetuning(data, TrainConfig(device="cpu"), steps=2)
    assert errors.labels == 4
    assert errors.frozen == 0
    assert 0 <= errors.finetuned <= 1
    encoder = data.dataset.bank.encoder
    assert all(torch.equal(before[name], value) for name, value in encoder.state_dict().items())
    assert not any(weight.requires_grad for weight in encoder.parameters())


def test_with_wrong_features_the_probe_loses(embedded):
    """Labels that the features do not show: the error on labels kept aside is that of a guess, not of the labels."""
    data = colored(rows=80, labeled=60)
    rng = np.random.default_rng(1)
    data.dataset.train.y[:60] = rng.integers(0, 2, 60)
    errors = auto.compare_finetuning(embedded(data), TrainConfig(device="cpu"), steps=1)
    assert errors.labels == 20
    assert 0.2 < errors.frozen < 0.8


def test_too_few_labels_to_keep_any_aside(embedded):
    assert auto.compare_finetuning(embedded(colored(labeled=4)), TrainConfig(device="cpu")) is None


def test_a_trial_takes_smaller_images_and_learns(embedded):
    bank = embedded(colored()).dataset.bank
    bank.encoder.input_size = 192
    network = auto.trial_network(bank.encoder)
    assert (network.input_size, bank.encoder.input_size) == (96, 192)
    assert all(weight.requires_grad for weight in network.parameters())
    large = auto.TRIAL_FORWARDS * bank.seconds_per_view()
    assert auto.trial_seconds(bank) == pytest.approx(large / 4, rel=0.5)
    bank.encoder.net.pretrained_cfg["fixed_input_size"] = True
    assert auto.trial_network(bank.encoder).input_size == 192


@pytest.mark.parametrize(
    ("weak", "patience", "finetuned", "said"),
    [
        (0.4, 1e9, 0.0, "cross-validated: frozen features work well"),
        (-1.0, 1e9, 0.2, "frozen 50 %, fine-tuned 20 % error: --preset finetune may be better here"),
        (-1.0, 1e9, 0.52, "frozen 50 %, fine-tuned 52 % error: frozen features work well"),
        (-1.0, 0.0, 0.0, "whether --preset finetune is better was not compared: that would take"),
    ],
)
def test_a_comparison_is_made_only_where_the_features_are_weak(
    weak, patience, finetuned, said, tmp_path, monkeypatch, capsys
):
    calls = []

    def compared(data, config):
        calls.append(data)
        return auto.Comparison(0.5, finetuned, 6)

    def chosen(data, *_):
        return auto.Choice("frozen", "for the test", make_encoder(Timm(**NETWORK), data.dataset.shape)[0])

    monkeypatch.setattr(auto, "choose_preset", chosen)
    monkeypatch.setattr(auto, "compare_finetuning", compared)
    monkeypatch.setattr(auto, "WEAK_FEATURES", weak)
    monkeypatch.setattr(auto, "PATIENCE", patience)
    options = dict(bank=VIEWS, steps=2, batch_size=4, device="cpu", cache=str(tmp_path))
    train(colored(), **options)
    assert said in capsys.readouterr().out
    compared_once = weak < 0 < patience
    assert len(calls) == compared_once
    train(colored(), progress=False, **options)
    assert len(calls) == compared_once, "without a screen nobody would read it"
