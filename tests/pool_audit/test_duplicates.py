"""Groups against all pairs and networkx-free union; real pictures for the hashes."""

import io

import imagehash
import numpy as np
import pytest
from PIL import Image
from scipy.ndimage import gaussian_filter

from vcc_infuse import UserError
from vcc_infuse.pool_audit import across_parts, conflicting_labels, duplicates, find_duplicates, perceptual_hashes
from vcc_infuse.pool_audit.duplicates import hash_distance


def slow_groups(features, threshold):
    """Every pair, and groups by repeated relabeling."""
    x = features / np.linalg.norm(features, axis=1, keepdims=True)
    near = x @ x.T >= threshold
    group = np.arange(len(x))
    for _ in range(len(x)):
        group = np.array([group[near[i] | (np.arange(len(x)) == i)].min() for i in range(len(x))])
    return group, np.where(np.eye(len(x), dtype=bool), -2, x @ x.T)


@pytest.fixture
def messy():
    """Rows of slowly falling variance, a third of them near copies, also chains of them."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(300, 100)) / np.sqrt(1 + np.arange(100))
    rows[200:] = rows[rng.integers(0, 250, 100)] + 0.15 * rng.normal(size=(100, 100)) / np.sqrt(1 + np.arange(100))
    return rows[rng.permutation(300)]


@pytest.mark.parametrize("threshold", [0.6, 0.9, 0.99])
@pytest.mark.parametrize("crowded", [0, 2**16])
def test_groups_are_those_of_all_pairs(messy, threshold, crowded, monkeypatch):
    monkeypatch.setattr(duplicates, "PAIR_BLOCK", 64)
    monkeypatch.setattr(duplicates, "CROWDED", crowded)
    monkeypatch.setattr(duplicates, "PENDING", 20)
    group, cosine = slow_groups(messy, threshold)
    result = find_duplicates(messy, threshold=threshold)
    np.testing.assert_array_equal(result.group, group)
    has_copy = cosine.max(1) >= threshold
    np.testing.assert_array_equal(result.partner, np.where(has_copy, cosine.argmax(1), -1))
    np.testing.assert_allclose(result.similarity[has_copy], cosine.max(1)[has_copy], atol=1e-5)
    assert np.isnan(result.similarity[~has_copy]).all()
    assert len({threshold, *map(int, group)}) > 1


def test_the_sketch_is_an_upper_bound(messy):
    sketch = duplicates._sketch(messy)
    x = messy / np.linalg.norm(messy, axis=1, keepdims=True)
    assert sketch.shape == (300, 65)
    assert (sketch @ sketch.T >= x @ x.T - 1e-5).all()
    assert (sketch @ sketch.T - x @ x.T).mean() < 0.2  # and not a vacuous one


def test_groups_and_what_can_be_left_out():
    result = find_duplicates([[1, 0], [0, 1], [1, 0.01], [0, 1.0], [0.01, 1], [-1, 0]])
    assert [part.tolist() for part in result.groups()] == [[1, 3, 4], [0, 2]]
    assert result.extra().tolist() == [2, 3, 4]


def test_all_copies_and_one_image():
    result = find_duplicates(np.ones((5000, 3)))
    assert (result.group == 0).all()
    assert find_duplicates([[3.0, 4.0]]).groups() == []


def picture(seed):
    rng = np.random.default_rng(seed)
    smooth = gaussian_filter(rng.normal(size=(64, 64, 3)), (6, 6, 0))
    return Image.fromarray(np.uint8(255 * (smooth - smooth.min()) / np.ptp(smooth)))


def compress(image):
    file = io.BytesIO()
    image.save(file, "JPEG", quality=40)
    return Image.open(file)


def test_hashes_are_those_of_the_library_and_find_compressed_copies():
    originals = [picture(seed) for seed in range(12)]
    copies = [compress(image.resize((40, 40))) for image in originals]
    hashes = perceptual_hashes([*originals, *copies])
    for i, first in enumerate(originals):
        for j, second in enumerate(copies):
            bits = min(
                imagehash.phash(first) - imagehash.phash(second), imagehash.dhash(first) - imagehash.dhash(second)
            )
            assert hash_distance(hashes[i], hashes[12 + j]) == bits
    rng = np.random.default_rng(0)
    base = rng.normal(size=(12, 300))
    features = np.vstack([base, base + rng.normal(size=(12, 300))])  # a cosine near 0.7: too little alone
    assert len(find_duplicates(features).groups()) == 0
    with_hashes = find_duplicates(features, hashes=hashes)
    assert [part.tolist() for part in with_hashes.groups()] == [[i, 12 + i] for i in range(12)]
    unrelated = np.vstack([base, rng.normal(size=(12, 300))])
    assert len(find_duplicates(unrelated, hashes=hashes).groups()) < 4  # similar hashes alone are not enough
    assert (perceptual_hashes([np.asarray(image) for image in originals]) == hashes[:12]).all()
    assert perceptual_hashes([]).shape == (0, 2)


def test_copies_across_parts_and_under_two_labels():
    result = find_duplicates(np.eye(4)[[0, 0, 1, 1, 2, 3, 3, 3]])
    parts = ["train", "test", "train", "train", "test", "train", "train", "validation"]
    assert across_parts(result, parts).tolist() == [0, 1, 5, 6, 7]
    assert conflicting_labels(result, [1, 1, 0, 2, 0, 3, -1, -1]).tolist() == [2, 3]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: find_duplicates([[np.inf, 1.0]]), "features must be finite"),
        (lambda: find_duplicates([[1.0]], threshold=2), r"threshold must be a number in \[-1, 1\], got 2"),
        (lambda: find_duplicates([[1.0]], hashes=np.zeros((2, 2))), r"hashes must have shape \(1, 2\)"),
        (lambda: across_parts(find_duplicates([[1.0]]), ["a", "b"]), "parts must have one entry per row"),
        (lambda: conflicting_labels(find_duplicates([[1.0]]), [0.5]), "labels must hold integers"),
    ],
)
def test_mistakes_cost_one_line(call, message):
    with pytest.raises(UserError, match=message):
        call()


def test_pairs_of_similar_features_can_need_similar_hashes():
    rows = np.array([[1.0, 0.0], [1.0, 0.01], [1.0, 0.02], [0.0, 1.0]])
    hashes = np.array([[0, 0], [2**10 - 1, 2**20 - 1], [2**40 - 1, 2**30 - 1], [0, 0]], np.uint64)
    group = find_duplicates(rows, hashes=hashes, hash_bits=0).group
    assert group.tolist() == [0, 0, 0, 3]
    assert find_duplicates(rows, hashes=hashes, hash_bits=0, confirm_bits=10).group.tolist() == [0, 0, 0, 3]
    assert find_duplicates(rows, hashes=hashes, hash_bits=0, confirm_bits=9).group.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("threshold", [0.6, 0.9, 0.99])
def test_likely_pairs_find_nearly_all_copies_and_nothing_else(messy, threshold):
    pytest.importorskip("faiss")
    group, cosine = slow_groups(messy, threshold)
    result = find_duplicates(messy, threshold=threshold, exact_up_to=0)
    has_copy = cosine.max(1) >= threshold
    assert (result.partner[has_copy] == cosine.argmax(1)[has_copy]).mean() >= 0.95
    assert (result.partner[~has_copy] == -1).all()
    assert (result.group == group).mean() >= 0.95
    assert (group[result.group] == group).all()  # what is joined belongs together


def test_likely_pairs_join_more_exact_copies_than_a_search_returns():
    pytest.importorskip("faiss")
    rows = np.random.default_rng(0).normal(size=(60, 12))
    many = np.concatenate([rows, np.repeat(rows[:2], 300, axis=0)])
    result = find_duplicates(many, exact_up_to=0, threshold=0.999)
    assert (result.group[60:] == np.repeat([0, 1], 300)).all()
    assert (result.group[:60] == np.arange(60)).all()


def test_likely_pairs_of_hashes_against_all_pairs():
    """Copies whose features are not near: a few bits of one of the hashes differ."""
    pytest.importorskip("faiss")
    rng = np.random.default_rng(0)
    originals = rng.integers(0, 2**63, (200, 2), dtype=np.uint64)
    flips = np.bitwise_or.reduce(np.uint64(1) << rng.integers(0, 64, (200, 4), dtype=np.uint64), axis=1)
    other = rng.integers(0, 2**63, 200, dtype=np.uint64)
    copies = np.stack([np.where(np.arange(200) % 2, originals[:, 0] ^ flips, other), originals[:, 1] ^ flips], axis=1)
    rows = rng.normal(size=(400, 64))
    rows[200:] = rows[:200] + 1.2 * rng.normal(size=(200, 64))  # a cosine near 0.64
    hashes = np.concatenate([originals, copies])
    exact = find_duplicates(rows, hashes=hashes, hash_bits=6)
    result = find_duplicates(rows, hashes=hashes, hash_bits=6, exact_up_to=0)
    joined = exact.partner >= 0
    assert joined.mean() > 0.9
    assert (result.partner[joined] == exact.partner[joined]).mean() >= 0.95
    assert (result.partner[~joined] == -1).all()
