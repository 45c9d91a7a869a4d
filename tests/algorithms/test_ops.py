import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vcc_infuse.algorithms.ops import epoch_steps, last_occurrence, ramp, sharpen

rows = st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=12)


@settings(max_examples=80, deadline=None)
@given(rows)
def test_last_occurrence_is_the_last_eligible_row_of_each_id(rows):
    ids = [i for i, _ in rows]
    expected = []
    for i in ids:
        group = [k for k, j in enumerate(ids) if j == i]
        eligible = [k for k in group if rows[k][1]]
        expected.append((eligible or group)[-1])
    got = last_occurrence(torch.tensor(ids), torch.tensor([e for _, e in rows]))
    assert got.tolist() == expected


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=12))
def test_last_occurrence_without_eligibility_is_the_last_row(ids):
    assert last_occurrence(torch.tensor(ids)).tolist() == [max(k for k, j in enumerate(ids) if j == i) for i in ids]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-4, 4), min_size=2, max_size=5), st.floats(0.2, 3))
def test_sharpened_probabilities_are_normalized_powers(logits, temperature):
    probs = torch.tensor([logits]).softmax(1)
    powers = [p ** (1 / temperature) for p in probs[0].tolist()]
    got = sharpen(probs, temperature)
    torch.testing.assert_close(got[0], torch.tensor([p / sum(powers) for p in powers]), atol=1e-5, rtol=1e-4)
    assert abs(got.sum().item() - 1) < 1e-5


def test_sharpening_keeps_zero_probabilities():
    torch.testing.assert_close(sharpen(torch.tensor([[0.0, 0.5, 0.5]]), 0.4), torch.tensor([[0.0, 0.5, 0.5]]))


def test_ramp_rises_linearly_and_stays_at_one():
    assert [ramp(progress, 0.4) for progress in (0.0, 0.1, 0.4, 0.9)] == [0.0, 0.25, 1.0, 1.0]
    assert ramp(0.0, 0.0) == 1.0


def test_an_epoch_is_1024_steps_or_a_twentieth_of_a_short_run():
    assert [epoch_steps(steps) for steps in (1, 100, 101, 20480, 2**20)] == [1, 5, 6, 1024, 1024]
