"""Backbones on frozen features."""

import torch
from torch import nn

from vcc_infuse.models import MLP, Identity, Timm
from vcc_infuse.models.backbone import Embedded


def test_identity_passes_vectors_through():
    model, x = Identity(), torch.randn(3, 5)
    model.setup((5,))
    assert model.features == 5
    assert model(x) is x


def test_embedded_standardizes_scales_and_applies_the_layers():
    torch.manual_seed(0)
    encoder, layers = nn.Sequential(nn.Flatten(), nn.Linear(12, 4)), nn.Linear(4, 3)
    mean, std = torch.randn(4), torch.rand(4) + 0.5
    model = Embedded.attach(encoder, layers, mean, std, 3)
    x = torch.randn(2, 3, 2, 2)
    rows = []
    for image in x:
        values = [
            (float(v) - float(m)) / float(s)
            for v, m, s in zip(encoder(image[None])[0].detach(), mean, std, strict=True)
        ]
        length = sum(v * v for v in values) ** 0.5
        rows.append(layers(torch.tensor([v / length for v in values])))
    torch.testing.assert_close(model(x), torch.stack(rows))
    assert model.features == 3
    assert {"mean", "std"} <= model.state_dict().keys()


def test_embedded_is_built_like_the_joined_one_and_takes_its_weights():
    def parts():
        return Timm("test_resnet", weights="none", input_size=32), MLP((6,))

    encoder, layers = parts()
    encoder.setup((3, 16, 16))
    layers.setup((encoder.features,))
    joined = Embedded.attach(encoder, layers, torch.randn(encoder.features), torch.rand(encoder.features) + 1, 6).eval()
    built = Embedded(*parts())
    built.setup((3, 16, 16))
    built.load_state_dict(joined.state_dict())
    x = torch.randn(2, 3, 16, 16)
    torch.testing.assert_close(built.eval()(x), joined(x), rtol=0, atol=0)
    assert built.features == 6


def test_the_normalization_is_that_of_the_encoder():
    encoder = Timm("test_resnet", weights="auto")
    encoder.setup((3, 32, 32))
    assert Embedded(encoder, Identity()).preprocessing() == encoder.preprocessing()
    assert Embedded(nn.Flatten(), Identity()).preprocessing() is None
