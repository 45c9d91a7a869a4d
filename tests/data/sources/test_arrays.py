"""Arrays of several views per example: how they are split into slots, and refused."""

import numpy as np
import pytest
import torch

from vcc_infuse import SSLData
from vcc_infuse.data.sources.arrays import from_arrays
from vcc_infuse.errors import UserError
from vcc_infuse.inference.predictor import make_views

Y = [0, 1, -1, 0]


def views(count=5, width=7, rows=4, seed=0):
    return np.random.RandomState(seed).randn(rows, count, width)


@pytest.mark.parametrize("slots", [(0, 0), (0, 1), (1, 1), (2, 3)])
def test_slots_are_kept_and_rows_have_the_shape_of_a_view(slots):
    data = from_arrays(views(1 + sum(slots)), Y, slots=slots)
    assert data.slots == slots
    assert data.shape == (7,)
    assert data.train.x.dtype == np.float32


def test_weak_and_strong_views_come_from_their_own_slots():
    """Rows of unit vectors: each slot has its own direction, which standardization keeps apart."""
    x = np.repeat(views(5, 7, rows=1), 300, 0) + 0.01 * views(5, 7, rows=300, seed=1)
    data = SSLData.from_arrays(x, np.arange(300) % 2, slots=(1, 3)).dataset
    drawn = make_views(data)
    raw = torch.from_numpy(data.train.x)
    as_plain = torch.stack([drawn("plain", raw[:, slot]) for slot in range(5)], 1)

    def used(name):
        same = (as_plain == drawn(name, raw)[:, None]).all(2)
        assert (same.sum(1) == 1).all()
        return set(same.int().argmax(1).tolist())

    assert used("plain") == {0}
    assert used("weak") == {1}
    assert used("strong") == {2, 3, 4}


def test_mean_and_std_are_those_of_the_plain_views():
    x = views(3) * 5 + 1
    data = from_arrays(x, Y, slots=(1, 1))
    np.testing.assert_allclose(data.mean, x[:, 0].mean(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(data.std, x[:, 0].std(0), rtol=1e-5)


def test_float16_stays_and_test_vectors_are_a_single_view():
    data = from_arrays(views().astype(np.float16), Y, views(1)[:, 0], [0, 1, 1, 0], slots=(2, 2))
    assert data.train.x.dtype == np.float16
    assert data.test.x.shape == (4, 1, 7)


def test_slots_make_views_of_what_looks_like_images():
    x = np.abs(views())
    assert from_arrays(x / x.max(), Y).slots is None
    assert from_arrays(x / x.max(), Y, slots=(2, 2)).slots == (2, 2)


@pytest.mark.parametrize(
    ("x", "slots", "message"),
    [
        (views(), (2, 3), r"slots must be the weak and strong views after the plain one, which are 4 in x"),
        (views(), (-1, 5), "slots must be an integer of at least 0"),
        (views()[:, :, :, None], (2, 2), "give numbers N×V×D"),
        (views(7, 7), None, r"must lie in 0…1; for N×V×D views give slots=\(weak, strong\)"),
        (views(), None, r"must lie in 0…1; for N×V×D views give slots=\(weak, strong\)"),
        (np.where(np.arange(5)[:, None] == 3, np.inf, views()), (2, 2), "NaN or infinite"),
    ],
)
def test_wrong_views_are_one_line(x, slots, message):
    with pytest.raises(UserError, match=message) as caught:
        from_arrays(x, Y, slots=slots)
    assert "\n" not in str(caught.value)
