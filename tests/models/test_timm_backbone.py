import pytest
import timm
import torch

from vcc_infuse.errors import UserError
from vcc_infuse.models import Timm


def built(name, shape, **options):
    model = Timm(name, **{"weights": "none", **options})
    model.setup(shape)
    return model


@pytest.mark.parametrize("name", ["test_resnet", "test_vit", "test_efficientnet", "mobilenetv3_small_050"])
@pytest.mark.parametrize("shape", [(1, 32, 32), (3, 64, 64)])
def test_shapes(name, shape):
    model = built(name, shape)
    assert model.eval()(torch.randn(2, *shape)).shape == (2, model.features)


def test_fixed_size_networks_get_the_size():
    model = built("vit_tiny_patch16_224", (1, 32, 48), model_kwargs={"depth": 1})
    assert model.net.pos_embed.shape[1] == 1 + 2 * 3
    assert model.eval()(torch.randn(2, 1, 32, 48)).shape == (2, model.features)


def test_model_kwargs_go_to_timm():
    deeper = built("test_vit", (3, 32, 32), model_kwargs={"depth": 2})
    assert len(deeper.net.blocks) == 2


def test_unknown_name_gets_a_suggestion():
    with pytest.raises(UserError, match=r"name must be a network of timm, got 'resnet81'; did you mean .*resnet18"):
        built("resnet81", (3, 32, 32))


def test_size_that_does_not_fit():
    with pytest.raises(UserError, match=r"test_vit cannot take images of shape \(3, 8, 8\)"):
        built("test_vit", (3, 8, 8))
    with pytest.raises(UserError, match="MLP"):
        built("test_vit", (64,))


def test_images_are_resized_for_the_network():
    model = built("test_resnet", (3, 16, 24), input_size=32, interpolation="bilinear").eval()
    x = torch.randn(2, 3, 16, 24)
    resized = torch.nn.functional.interpolate(x, (32, 32), mode="bilinear", antialias=True)
    torch.testing.assert_close(model(x), model.net(resized))
    torch.testing.assert_close(model(resized), model.net(resized), rtol=0, atol=0)


def test_random_weights_have_no_normalization_of_their_own():
    assert built("test_resnet", (3, 32, 32)).preprocessing() is None
    pretrained = Timm("test_resnet")
    pretrained.setup((3, 32, 32))
    assert pretrained.preprocessing() == ((0.5,) * 3, (0.5,) * 3, 160, "bilinear")


def test_sizes_are_checked():
    with pytest.raises(UserError, match="input_size must be an integer of at least 1, got 0"):
        Timm(input_size=0)


def test_pretrained_weights_serve_other_numbers_of_channels(tmp_path):
    """timm's own way to more channels is the oracle: the first layer repeats the weights of red, green and blue."""
    saved = timm.create_model("test_resnet", num_classes=0)
    torch.save(saved.state_dict(), tmp_path / "w.pth")
    own = Timm("test_resnet", str(tmp_path / "w.pth"))
    own.setup((5, 32, 32))
    own.load_pretrained()
    first = saved.state_dict()["conv1.0.weight"]
    assert torch.allclose(own.net.state_dict()["conv1.0.weight"], first.repeat(1, 2, 1, 1)[:, :5] * (3 / 5))
    assert torch.equal(own.net.state_dict()["layer1.0.conv1.weight"], saved.state_dict()["layer1.0.conv1.weight"])
    assert len(own.preprocessing().mean) == len(own.preprocessing().std) == 5
    assert own(torch.randn(2, 5, 32, 32)).shape == (2, own.features)


@pytest.mark.parametrize(
    ("name", "weights", "side"),
    [
        ("tf_efficientnet_lite0", "auto", 224),
        ("tf_efficientnet_lite2", "auto", 260),
        ("vit_small_patch14_dinov2", "none", 518),
        ("test_resnet", "a/file.pth", 160),
        ("inception_v3", "Inception_V3_Weights.IMAGENET1K_V1", 299),
        ("efficientnet_b0", "EfficientNet_B4_Weights.IMAGENET1K_V1", 380),
    ],
)
def test_the_native_size_is_known_before_the_network_is_built(name, weights, side):
    network = Timm(name, weights, input_size=32)
    assert network.native_size() == side
    assert not hasattr(network, "net")


def test_the_native_size_of_no_network():
    with pytest.raises(UserError, match="name must be a network of timm, got 'resnet81'"):
        Timm("resnet81").native_size()
    with pytest.raises(UserError, match="must name weights of a torchvision classifier"):
        Timm("resnet18", "ResNet18_Weights.NOTHING").native_size()
