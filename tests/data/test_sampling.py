import numpy as np
import torch

from vcc_infuse.data.augment.views import ImageViews
from vcc_infuse.data.sampling import Batches
from vcc_infuse.types import Coreset


def batches(digits, names=("weak", "strong"), **options):
    views = ImageViews(digits.dataset.mean, digits.dataset.std, flip=False)
    return Batches(digits, views, names, batch=8, unlabeled=16, **options)


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


def test_a_core_set_bounds_what_is_drawn_and_brings_its_weights(digits):
    source = batches(digits)
    ids = torch.tensor([5, 900, 17, 33, 1200])
    source.restrict(Coreset(ids, torch.tensor([0.5, 1.5, 1.0, 0.25, 1.75])), start=10)
    seen = torch.cat([source.at(step).pool_ids for step in range(10, 15)])
    assert sorted(np.unique(seen).tolist()) == sorted(ids.tolist())
    assert np.unique(seen, return_counts=True)[1].tolist() == [16] * 5
    batch = source.at(12)
    assert torch.equal(batch.weights[batch.pool_ids == 900], torch.full(((batch.pool_ids == 900).sum(),), 1.5))


def test_slices_of_several_processes_make_the_batch_of_one(digits):
    whole = batches(digits, names=()).at(4)
    parts = [batches(digits, names=(), rank=rank, world=4).at(4) for rank in range(4)]
    assert torch.equal(torch.stack([part.ids for part in parts], 1).flatten(), whole.ids)


def test_further_views_of_labeled_images(digits):
    batch = batches(digits, labeled_names=("strong",)).at(0)
    assert batch.views["labeled_strong"].shape == batch.x.shape
    assert not torch.equal(batch.views["labeled_strong"], batch.x)
