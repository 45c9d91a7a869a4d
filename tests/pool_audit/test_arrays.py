"""Main directions against numpy's decomposition of all products."""

import numpy as np
import pytest

from vcc_infuse.pool_audit.arrays import main_directions


@pytest.mark.parametrize("count", [2, 12, 40])
@pytest.mark.parametrize("rows", [12, 60], ids=["fewer rows than dimensions", "more"])
def test_main_directions_span_what_the_eigenvectors_of_all_products_span(rows, count):
    rng = np.random.default_rng(rows)
    x = rng.normal(size=(rows, 30)) / (1 + np.arange(30))
    x = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)
    basis = main_directions(x, count)
    values, vectors = np.linalg.eigh(x.astype(np.float64).T @ x)
    kept = min(count, rows, 30)
    expected = vectors[:, -kept:] @ vectors[:, -kept:].T
    assert basis.shape == (30, kept)
    np.testing.assert_allclose(basis @ basis.T, expected, atol=1e-4)
    # The direction in which rows differ most comes last, as with eigh.
    np.testing.assert_allclose(np.square(x @ basis).sum(0), values[-kept:], rtol=1e-3)


def test_equal_rows_have_one_direction_and_an_orthonormal_basis_all_the_same():
    basis = main_directions(np.full((3, 8), 8**-0.5, np.float32), 3)
    np.testing.assert_allclose(basis.T @ basis, np.eye(basis.shape[1]), atol=1e-5)
    np.testing.assert_allclose(np.abs(basis[:, -1]), 8**-0.5, atol=1e-5)
