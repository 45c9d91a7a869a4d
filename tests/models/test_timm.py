import sys

import pytest
import torch

from vcc_infuse.errors import UserError
from vcc_infuse.models import Timm


def built(name, shape, **options):
    model = Timm(name, **options)
    model.setup(shape)
    return model


@pytest.mark.parametrize("name", ["test_resnet", "test_vit", "test_efficientnet", "mobilenetv3_small_050"])
@pytest.mark.parametrize("shape", [(1, 32, 32), (3, 64, 64)])
def test_shapes(name, shape):
    model = built(name, shape)
    assert model.eval()(torch.randn(2, *shape)).shape == (2, model.features)


def test_fixed_size_networks_are_told_the_size():
    model = built("vit_tiny_patch16_224", (1, 32, 48), options={"depth": 1})
    assert model.net.pos_embed.shape[1] == 1 + 2 * 3
    assert model.eval()(torch.randn(2, 1, 32, 48)).shape == (2, model.features)


def test_options_go_to_timm():
    deeper = built("test_vit", (3, 32, 32), options={"depth": 2})
    assert len(deeper.net.blocks) == 2


def test_unknown_name_lists_near_ones():
    with pytest.raises(UserError, match=r"resnet81 .*resnet18"):
        built("resnet81", (3, 32, 32))


def test_model_without_weights():
    with pytest.raises(UserError, match=r"model\.pretrained=false"):
        built("resnet10t.no_such_tag", (3, 32, 32), pretrained=True)


def test_size_that_does_not_fit():
    with pytest.raises(UserError, match=r"test_vit cannot take images \(3, 8, 8\)"):
        built("test_vit", (3, 8, 8))
    with pytest.raises(UserError, match="MLP"):
        built("test_vit", (64,))


def test_missing_timm_says_how_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(UserError, match=r"pip install 'vcc-infuse\[timm\]'"):
        built("resnet18", (3, 32, 32))
