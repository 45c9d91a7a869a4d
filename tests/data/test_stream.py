import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vcc_infuse.data.sampling import Stream


def test_every_id_is_seen_equally_often():
    ids = np.array([3, 5, 8, 13])
    seen = Stream(ids, 0).at(0, 4 * 25)
    assert np.array_equal(np.unique(seen, return_counts=True)[1], [25] * 4)


@given(start=st.integers(0, 200), count=st.integers(1, 60), size=st.integers(1, 17))
def test_a_piece_is_the_same_wherever_one_enters(start, count, size):
    whole = Stream(np.arange(size), 7).at(0, start + count)
    assert np.array_equal(Stream(np.arange(size), 7).at(start, count), whole[start:])


@pytest.mark.parametrize("key", [(1,), (0, 1)])
def test_streams_of_different_keys_differ(key):
    a, b = Stream(np.arange(50), 0).at(0, 50), Stream(np.arange(50), *key).at(0, 50)
    assert not np.array_equal(a, b)
