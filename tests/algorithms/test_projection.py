import torch

from tests.helpers.tiny import FEATURES, make_model
from vcc_infuse.algorithms.ops import Projection, similarity


def test_rows_are_the_normalized_output_of_two_layers():
    torch.manual_seed(0)
    head, features = Projection.of(make_model(), 4), torch.randn(7, FEATURES)
    first, second = head.layers[0], head.layers[2]
    raw = (features @ first.weight.T + first.bias).clamp(min=0) @ second.weight.T + second.bias
    torch.testing.assert_close(head(features), raw / raw.square().sum(1, keepdim=True).sqrt())


def test_float32_under_autocast_and_for_bf16_features():
    head, features = Projection(FEATURES, 4), torch.randn(7, FEATURES)
    exact = head(features)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(head(features), exact)
        cosines = similarity(exact, exact, 0.1)
    assert torch.equal(cosines, exact @ exact.T / 0.1)
    assert head(features.bfloat16()).dtype == torch.float32


def test_hidden_layer_of_another_width():
    head = Projection.of(make_model(), 4, hidden_dim=3)
    assert [layer.weight.shape for layer in (head.layers[0], head.layers[2])] == [(3, FEATURES), (4, 3)]
    assert head(torch.randn(7, FEATURES)).shape == (7, 4)
