import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vcc_infuse.algorithms.ops import last_occurrence

rows = st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=12)


@settings(max_examples=80, deadline=None)
@given(rows)
def test_last_eligible_row_of_each_id(rows):
    ids = [i for i, _ in rows]
    expected = []
    for i in ids:
        group = [k for k, j in enumerate(ids) if j == i]
        sure = [k for k in group if rows[k][1]]
        expected.append((sure or group)[-1])
    got = last_occurrence(torch.tensor(ids), torch.tensor([e for _, e in rows]))
    assert got.tolist() == expected


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=12))
def test_without_eligibility_the_last_row(ids):
    assert last_occurrence(torch.tensor(ids)).tolist() == [max(k for k, j in enumerate(ids) if j == i) for i in ids]
