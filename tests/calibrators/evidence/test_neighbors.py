"""Neighbors against scikit-learn, and their mean prediction against a loop."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from sklearn.neighbors import NearestNeighbors

from vcc_infuse.calibrators.evidence import neighbors as module
from vcc_infuse.calibrators.evidence.neighbors import FeatureMemory, mean_over, support_of
from vcc_infuse.calibrators.history import History, Visit
from vcc_infuse.utils.neighbors import NearestRows

POOL, LABELED, WIDTH = 60, 5, 12


def filled(code_size=WIDTH, neighbors=4, seed=0):
    """A memory in which the labeled images are the first of the pool, and the features."""
    features = torch.randn(POOL, WIDTH, generator=torch.Generator().manual_seed(seed))
    memory = FeatureMemory(POOL, labeled=LABELED, width=WIDTH, code_size=code_size, neighbors=neighbors)
    memory.write(torch.arange(POOL), features)
    memory.write(POOL + torch.arange(LABELED), features[:LABELED])
    memory.find_neighbors()
    return memory, features


def test_neighbors_are_those_of_scikit_learn_without_the_image_itself():
    memory, features = filled()
    centered = F.normalize(features - features.mean(0)).numpy()
    expected = NearestNeighbors(n_neighbors=4).fit(centered).kneighbors(return_distance=False)
    agreeing = (memory.nearest[:POOL].numpy() == expected).mean()
    assert agreeing > 0.97  # codes are stored in half precision
    assert (memory.nearest[:POOL] != torch.arange(POOL)[:, None]).all()
    # An image that is labeled and in the pool has the same neighbors in both places.
    assert torch.equal(memory.nearest[POOL:], memory.nearest[:LABELED])


def test_few_directions_keep_the_neighbors_of_features_that_vary_in_few():
    generator = torch.Generator().manual_seed(1)
    low = torch.randn(POOL, 3, generator=generator)
    features = low @ torch.randn(3, WIDTH, generator=generator) + 5
    memory = FeatureMemory(POOL, labeled=0, width=WIDTH, code_size=3, neighbors=4)
    memory.write(torch.arange(POOL), features)
    memory.find_neighbors()
    centered = F.normalize(features - features.mean(0)).numpy()
    expected = NearestNeighbors(n_neighbors=4).fit(centered).kneighbors(return_distance=False)
    assert (memory.nearest.numpy() == expected).mean() > 0.95


def test_codes_average_visits_and_only_seen_examples_are_neighbors():
    memory = FeatureMemory(10, labeled=0, width=4, code_size=4, neighbors=2)
    one, other = torch.randn(6, 4), torch.randn(6, 4)
    ids = torch.tensor([1, 3, 5, 7, 8, 9])
    memory.write(ids, one)
    first = memory.codes[ids].float()
    memory.write(ids, other)
    second = F.normalize((other - memory.center) @ memory.basis)
    torch.testing.assert_close(memory.codes[ids].float(), (first + second) / 2, atol=2e-3, rtol=0)
    memory.find_neighbors()
    assert set(memory.nearest[ids].flatten().tolist()) <= set(ids.tolist())
    assert memory.found.nonzero()[:, 0].tolist() == ids.tolist()


def test_among_exact_copies_an_image_still_has_other_neighbors():
    memory = FeatureMemory(20, labeled=0, width=4, code_size=4, neighbors=3)
    copies = torch.randn(20, 4)
    copies[:12] = copies[0]
    memory.write(torch.arange(20), copies)
    memory.find_neighbors()
    assert (memory.nearest != torch.arange(20)[:, None]).all()
    assert all(len(set(row)) == 3 for row in memory.nearest.tolist())
    assert (memory.nearest[:12] < 12).all()


def test_before_anything_was_seen_no_image_has_neighbors():
    memory, history = FeatureMemory(20, labeled=0, width=4, code_size=4, neighbors=3), History(20, 2)
    assert not mean_over(memory.look_up(torch.randn(5, 4)), torch.zeros(5, 1).long(), history).known.any()


def test_parts_of_the_pool_are_looked_up_as_the_whole(monkeypatch):
    memory, features = filled()
    memory.seen[5:9] = False
    whole = memory.look_up(features + 0.1)
    monkeypatch.setattr(module, "COLUMNS", 7)
    assert torch.equal(memory.look_up(features + 0.1), whole)
    assert not torch.isin(whole, torch.arange(5, 9)).any()


def test_a_large_pool_is_searched_by_a_graph_without_the_image_itself(monkeypatch):
    pytest.importorskip("faiss")
    exact, _ = filled()
    monkeypatch.setattr(module, "NearestRows", partial(NearestRows, exact_up_to=10))
    graph, _ = filled()
    assert (graph.nearest == exact.nearest).float().mean() > 0.95
    assert (graph.nearest[:POOL] != torch.arange(POOL)[:, None]).all()
    assert graph.found.all()


def test_new_images_find_their_twins():
    memory, features = filled()
    nearest = memory.look_up(features[:7] + 1e-3)
    assert nearest[:, 0].tolist() == list(range(7))


def test_mean_prediction_is_the_mean_of_the_known_ones():
    memory, _ = filled()
    history, probs = History(POOL, 3), torch.rand(POOL, 3).softmax(1)
    known = torch.arange(0, POOL, 2)
    history.write(known, probs[known], 0)
    ids = torch.tensor([3, 8, 20])
    classes = torch.arange(3).expand(3, 3)
    mean, found = memory.mean_prediction(ids, classes, history, 1)
    for row, nearest in zip(mean, memory.nearest[ids].tolist(), strict=True):
        own = [probs[i] for i in nearest if i % 2 == 0]
        expected = torch.stack(own).mean(0) if own else torch.zeros(3)
        torch.testing.assert_close(row, expected, atol=1e-3, rtol=0)
    assert found.tolist() == [any(i % 2 == 0 for i in near) for near in memory.nearest[ids].tolist()]
    assert not memory.mean_prediction(ids, classes, History(POOL, 3), 1).known.any()
    torch.testing.assert_close(mean_over(memory.nearest[ids].long(), classes, history).probs, mean)


def test_support_that_is_not_known_is_not_a_number():
    near = Visit(torch.tensor([[0.4], [0.9]]), torch.tensor([True, False]))
    found = support_of(torch.tensor([[0.7], [0.8]]), near)
    torch.testing.assert_close(found[:, 0], torch.tensor([[0.7, 0.4], [0.8, torch.nan]]), equal_nan=True)
