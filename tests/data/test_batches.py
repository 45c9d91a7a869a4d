import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vcc_infuse.augment.views import ImageViews
from vcc_infuse.data.batches import Batches, Stream
from vcc_infuse.types import Coreset


def test_every_id_is_seen_equally_often():
    ids = np.array([3, 5, 8, 13])
    seen = Stream(ids, 0).at(0, 4 * 25)
    assert np.array_equal(np.unique(seen, return_counts=True)[1], [25] * 4)


@given(start=st.integers(0, 200), count=st.integers(1, 60), size=st.integers(1, 17))
def test_a_slice_does_not_depend_on_where_reading_starts(start, count, size):
    whole = Stream(np.arange(size), 7).at(0, start + count)
    assert np.array_equal(Stream(np.arange(size), 7).at(start, count), whole[start:])


@pytest.mark.parametrize("key", [(1,), (0, 1)])
def test_streams_of_different_keys_differ(key):
    a, b = Stream(np.arange(50), 0).at(0, 50), Stream(np.arange(50), *key).at(0, 50)
    assert not np.array_equal(a, b)


def batches(digits, names=("weak", "strong"), **options):
    views = ImageViews(digits.dataset.mean, digits.dataset.std, flip=False)
    return Batches(digits, views, names, batch_size=8, unlabeled_batch_size=16, **options)


def test_labels_belong_to_their_images(digits):
    source = batches(digits)
    for step in range(6):
        batch = source.at(step)
        rows = digits.split.labeled[batch.ids.numpy()]
        assert np.array_equal(digits.dataset.train.y[rows], batch.y.numpy())
        assert set(batch.views) == {"weak", "strong"}
        assert batch.views["weak"].shape == (16, 1, 8, 8)


def test_views_show_the_pool_examples_they_claim(digits):
    source = batches(digits, names=("plain",))
    batch = source.at(3)
    raw = torch.from_numpy(digits.dataset.train.x[digits.split.pool[batch.pool_ids.numpy()]])
    assert torch.equal(batch.views["plain"], source.views("plain", raw))


def test_a_core_set_limits_the_draws_and_sets_the_weights(digits):
    source = batches(digits)
    ids = torch.tensor([5, 900, 17, 33, 1200])
    source.restrict(Coreset(ids, torch.tensor([0.5, 1.5, 1.0, 0.25, 1.75])), start=10)
    seen = torch.cat([source.at(step).pool_ids for step in range(10, 15)])
    assert sorted(np.unique(seen).tolist()) == sorted(ids.tolist())
    assert np.unique(seen, return_counts=True)[1].tolist() == [16] * 5
    batch = source.at(12)
    assert torch.equal(batch.weights[batch.pool_ids == 900], torch.full(((batch.pool_ids == 900).sum(),), 1.5))


def test_the_slices_of_several_processes_form_the_batch_of_one(digits):
    whole = batches(digits, names=()).at(4)
    parts = [batches(digits, names=(), rank=rank, world=4).at(4) for rank in range(4)]
    assert torch.equal(torch.stack([part.ids for part in parts], 1).flatten(), whole.ids)


def test_extra_views_of_labeled_images(digits):
    batch = batches(digits, labeled_names=("strong",)).at(0)
    assert batch.views["labeled_strong"].shape == batch.x.shape
    assert not torch.equal(batch.views["labeled_strong"], batch.x)
