"""Several networks side by side, against each of them alone."""

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F

from vcc_infuse import Concat, Predictor, SSLData, Timm, TrainConfig, train
from vcc_infuse.augment.views import ImageViews
from vcc_infuse.bank.bank import BankConfig
from vcc_infuse.bank.embed import make_encoder, open_bank
from vcc_infuse.errors import UserError
from vcc_infuse.inference.export import export_model, largest_difference
from vcc_infuse.models import Classifier
from vcc_infuse.models.concat import network_class
from vcc_infuse.training.optimizer import freeze, make_optimizer

NAMES = ("test_resnet", "mobilenetv3_small_050")  # their weights expect different means and deviations


@pytest.fixture
def files(tmp_path):
    """Weights of both networks."""
    paths = []
    for seed, name in enumerate(NAMES):
        torch.manual_seed(seed)
        net = timm.create_model(name, num_classes=0)
        for module in net.modules():  # statistics that show a wrong normalization
            if isinstance(module, torch.nn.BatchNorm2d):
                module.running_mean.normal_(0, 0.1)
        paths.append(str(tmp_path / f"{name}.pth"))
        torch.save(net.state_dict(), paths[-1])
    return paths


def pair(files, size="32+48"):
    return Concat("+".join(NAMES), "+".join(files), size)


def images(channels, rows=20, side=40):
    return np.random.default_rng(0).integers(0, 256, (rows, side, side, channels), dtype=np.uint8)


def alone(name, file, size, raw):
    """The features of one network, through its own preprocessing."""
    encoder, _ = make_encoder(Timm(name, file, size), raw.shape[1:])
    expects = encoder.preprocessing()
    with torch.no_grad():
        return encoder.eval()(ImageViews(expects.mean, expects.std)("plain", torch.from_numpy(raw)))


@pytest.mark.parametrize("channels", [1, 3, 5])
def test_features_are_those_of_each_network_alone(files, channels):
    raw = images(channels)
    encoder, source = make_encoder(pair(files), raw.shape[1:])
    expects = encoder.preprocessing()
    with torch.no_grad():
        joined = encoder.eval()(ImageViews(expects.mean, expects.std)("plain", torch.from_numpy(raw)))
    expected = [alone(*each, raw) for each in zip(NAMES, files, (32, 48), strict=True)]
    assert encoder.features == joined.shape[1] == sum(part.shape[1] for part in expected)
    torch.testing.assert_close(joined, torch.cat(expected, 1), rtol=1e-4, atol=1e-5)
    assert all(file in source for file in files)


def test_every_network_gets_the_normalization_of_its_weights_by_hand(files):
    """timm's own configuration, no line of ours but the networks' weights."""
    raw = images(3, rows=4, side=48)
    encoder, _ = make_encoder(pair(files, 48), raw.shape[1:])
    expects = encoder.preprocessing()
    scaled = torch.from_numpy(raw).permute(0, 3, 1, 2) / 255
    given = (scaled - torch.tensor(expects.mean).view(3, 1, 1)) / torch.tensor(expects.std).view(3, 1, 1)
    outputs = []
    for name, file in zip(NAMES, files, strict=True):
        net = timm.create_model(name, num_classes=0).eval()
        net.load_state_dict(torch.load(file))
        config = net.pretrained_cfg
        with torch.no_grad():
            mean, std = (torch.tensor(config[key]).view(3, 1, 1) for key in ("mean", "std"))
            outputs.append(net((scaled - mean) / std))
    assert timm.get_pretrained_cfg(NAMES[0]).mean != timm.get_pretrained_cfg(NAMES[1]).mean
    with torch.no_grad():
        torch.testing.assert_close(encoder.eval()(given), torch.cat(outputs, 1), rtol=1e-4, atol=1e-5)


def test_sizes_for_all_or_for_each():
    assert [network.input_size for network in Concat("a+b+c", input_size=64).members] == [64] * 3
    assert [network.input_size for network in Concat("a+b", input_size="64+96").members] == [64, 96]
    assert Concat("a+b", input_size="64+96").input_size == "64+96"
    assert Concat("a+b", input_size="64").input_size == 64
    assert Concat("a+b").input_size is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"name": "a+"}, r"name must hold two or more networks of timm, got 'a\+'"),
        ({"name": "+"}, r"name must hold two or more networks"),
        ({"name": "a"}, r"name must hold two or more networks"),
        ({"name": "a+b", "input_size": "0+224"}, "input_size must be an integer of at least 1, got 0"),
        ({"name": "a+b", "input_size": "1+2+3"}, r"input_size must be one value, or one for each of the 2 networks"),
        ({"name": "a+b", "input_size": "large"}, "input_size must be an integer, or integers joined by"),
        ({"name": "a+b", "input_size": 2.5}, "input_size must be an integer of at least 1, got 2.5"),
    ],
)
def test_bad_names_and_sizes_cost_one_line(options, said):
    with pytest.raises(UserError, match=said):
        Concat(**options)


def test_an_unknown_network_gets_a_suggestion():
    with pytest.raises(
        UserError, match="name must be a network of timm, got 'test_resnat'; did you mean .*test_resnet"
    ):
        Concat("test_vit+test_resnat", "none").setup((3, 32, 32))


def test_the_name_decides_the_class():
    assert network_class(Timm, {"name": "a+b"}) is Concat
    assert network_class(Concat, {"name": "a"}) is Timm
    assert network_class(Concat, {}) is Concat
    assert network_class(Classifier, {"name": "a+b"}) is Classifier


def test_layers_of_both_networks_learn_at_their_own_rates():
    backbone = Concat("test_resnet+test_vit", "none", 32)
    model = Classifier.build(backbone, (3, 32, 32), 3)
    optimizer = make_optimizer(model, [], TrainConfig(optimizer="adamw", layer_decay=0.5))
    scales = {id(p): group["lr_scale"] for group in optimizer.param_groups for p in group["params"]}
    assert scales.keys() == {id(parameter) for parameter in model.parameters()}
    resnet, vit = (network.net for network in backbone.members)
    assert scales[id(resnet.conv1[0].weight)] < scales[id(resnet.layer4[-1].conv1.weight)]
    assert scales[id(vit.patch_embed.proj.weight)] < scales[id(vit.blocks[-1].attn.qkv.weight)]
    freeze(model, TrainConfig(freeze=1))
    assert not resnet.conv1[0].weight.requires_grad
    assert not vit.patch_embed.proj.weight.requires_grad
    assert resnet.layer4[-1].conv1.weight.requires_grad


def test_banks_of_other_weights_or_sizes_have_other_keys(files, tmp_path):
    raw = images(3, rows=6)
    data = SSLData.from_arrays(raw, [0, 1, 0, 1, -1, -1])

    def key(network):
        encoder, _ = make_encoder(network, data.dataset.shape)
        return open_bank(data, encoder, BankConfig(1, 1), cache=str(tmp_path / "cache"), device="cpu").folder

    same = key(pair(files))
    moved = [file.replace(".pth", "-moved.pth") for file in files]
    for old, new in zip(files, moved, strict=True):
        torch.save(torch.load(old), new)
    assert key(pair(moved)) == same, "the folder of the weights does not matter"
    assert key(pair(files, "32+32")) != same
    changed = torch.load(files[1])
    changed["conv_stem.weight"] += 0.1
    torch.save(changed, files[1])
    assert key(pair(files)) != same


@pytest.mark.slow
@pytest.mark.parametrize("channels", [1, 3])
def test_a_run_is_complete_and_exports(files, tmp_path, channels):
    raw = images(channels, rows=24)
    y = np.arange(24) % 2
    raw[y == 1] //= 2
    data = SSLData.from_arrays(raw, np.where(np.arange(24) < 12, y, -1), raw[:8], y[:8])
    out = tmp_path / "run"
    result = train(
        data, preset="frozen", model=pair(files), algorithm="FixMatch", bank=BankConfig(1, 1), steps=3, batch_size=4,
        progress=False, device="cpu", cache=str(tmp_path / "cache"), out=str(out), report=False,
    )  # fmt: skip
    assert result.summary["encoder"] == "+".join(NAMES)
    assert result.summary["input_size"] == "32+48"
    expected = result.predictor.predict(raw).probs
    for file in files:
        (tmp_path / file).unlink()  # a run folder never needs the starting weights again
    loaded = Predictor.load(out, "cpu")
    torch.testing.assert_close(loaded.predict(raw).probs, expected)
    path = export_model(loaded, tmp_path / "model.onnx")
    assert largest_difference(loaded, path) < 1e-3


def test_both_are_fine_tuned(files):
    raw = images(3, rows=16, side=32)
    y = np.arange(16) % 2
    data = SSLData.from_arrays(raw, y)
    before = [torch.load(file) for file in files]
    options = dict(steps=2, batch_size=2, progress=False, device="cpu", lr=0.01)
    trained = train(data, preset="finetune", model=pair(files, 32), **options).predictor.model.backbone
    for network, old in zip(trained.members, before, strict=True):
        assert any(not torch.equal(old[name], value) for name, value in network.net.state_dict().items() if name in old)


def test_bicubic_and_bilinear_side_by_side(files):
    """Each network resizes in its own way, also after the options went through a file."""
    both = Concat("+".join(NAMES), "none", 24, "bilinear+bicubic")
    again = Concat(both.name, both.weights, both.input_size, both.interpolation)
    again.setup((3, 40, 40))
    x = torch.randn(2, 3, 40, 40)
    parts = []
    for network, mode in zip(again.eval().members, ("bilinear", "bicubic"), strict=True):
        parts.append(network.net(F.interpolate(x, (24, 24), mode=mode, antialias=True)))
    torch.testing.assert_close(again(x), torch.cat(parts, 1))
