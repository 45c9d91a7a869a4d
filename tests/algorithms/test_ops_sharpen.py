import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vcc_infuse.algorithms.ops import sharpen


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-4, 4), min_size=2, max_size=5), st.floats(0.2, 3))
def test_powers_that_sum_to_one(logits, temperature):
    probs = torch.tensor([logits]).softmax(1)
    powers = [p ** (1 / temperature) for p in probs[0].tolist()]
    got = sharpen(probs, temperature)
    torch.testing.assert_close(got[0], torch.tensor([p / sum(powers) for p in powers]), atol=1e-5, rtol=1e-4)
    assert abs(got.sum().item() - 1) < 1e-5


def test_zero_probability_stays_zero():
    torch.testing.assert_close(sharpen(torch.tensor([[0.0, 0.5, 0.5]]), 0.4), torch.tensor([[0.0, 0.5, 0.5]]))
