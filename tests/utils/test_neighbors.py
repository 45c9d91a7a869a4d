"""Nearest rows against scikit-learn: exact, and by the graph of faiss."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.neighbors import NearestNeighbors

from vcc_infuse.utils import neighbors
from vcc_infuse.utils.neighbors import NearestRows

COUNT = 10


def clustered(rows, width=16, clusters=20, seed=0):
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(clusters, width))
    x = centers[rng.integers(0, clusters, rows)] + 0.4 * rng.normal(size=(rows, width))
    return F.normalize(torch.from_numpy(x).float())


def expected(queries, rows):
    return NearestNeighbors(n_neighbors=COUNT, algorithm="brute").fit(rows.numpy()).kneighbors(queries.numpy())


@pytest.mark.parametrize("rows", [COUNT, 700, 4 * 64 * COUNT + 37])
def test_exact_search_is_that_of_scikit_learn_in_order(rows):
    """The last number of rows is searched in groups, with some rows behind the last whole group."""
    x = clustered(rows)
    queries = torch.cat([x[-40:], clustered(100, seed=1)])
    found = NearestRows(x).of(queries, COUNT)
    distance, _ = expected(queries, x)
    own = (queries[:, None] - x[found]).norm(dim=2)
    np.testing.assert_allclose(own, distance, atol=1e-3)  # ties may stand in another order
    assert all(len(set(row)) == COUNT for row in found.tolist())


def test_the_graph_finds_nearly_all_and_the_same_ones_again():
    pytest.importorskip("faiss")
    x = clustered(3000)
    found = NearestRows(x, exact_up_to=100).of(x[:500], COUNT)
    _, numbers = expected(x[:500], x)
    recall = np.mean([len(set(a) & set(b)) / COUNT for a, b in zip(found.tolist(), numbers.tolist(), strict=True)])
    assert recall >= 0.95
    assert torch.equal(found, NearestRows(x.half(), exact_up_to=100).of(x[:500].clone(), COUNT))


def test_threads_of_the_caller_are_left_alone():
    faiss = pytest.importorskip("faiss")
    before = faiss.omp_get_max_threads()
    NearestRows(clustered(200), exact_up_to=100)
    assert faiss.omp_get_max_threads() == before


def test_without_faiss_one_line_names_the_extra_and_the_time(monkeypatch):
    monkeypatch.setattr(neighbors, "find_spec", lambda name: None)
    x = clustered(300)
    with pytest.warns(UserWarning, match=r"300 images .* 0 minutes; pip install 'vcc-infuse\[faiss\]'"):
        found = NearestRows(x, exact_up_to=100).of(x[:9], COUNT)
    assert found[:, 0].tolist() == list(range(9))
