import numpy as np
import pytest

from vcc_infuse.runs.gallery import IN_CELL, cells, ends, last_scores, mistakes, ranked, thumbnail


def test_mistakes_come_by_confidence():
    predictions = dict(
        truth=np.array([0, 1, 2, 0]), predicted=np.array([0, 2, 1, 1]), calibrated=np.array([0.9, 0.3, 0.8, 0.5])
    )
    x = np.arange(4, dtype=np.uint8).reshape(4, 1, 1, 1) * np.ones((1, 4, 4, 1), np.uint8)
    kept = mistakes(x, ["a", "b", "c", "d"], predictions, count=2)
    assert kept["mistakes_names"].tolist() == ["c", "d"]
    assert kept["mistakes_images"][:, 0, 0].tolist() == [2, 3]
    assert kept["mistakes_label"].tolist() == [1, 1]


@pytest.mark.parametrize("count", [7, 30, 1000])
def test_every_cell_of_the_confusion_has_images_before_any_has_many(count):
    rng = np.random.default_rng(0)
    truth, predicted = rng.choice(4, (2, 300), p=[0.7, 0.2, 0.08, 0.02])
    answers = dict(truth=truth, predicted=predicted, calibrated=rng.random(300))
    x = np.zeros((300, 2, 2, 1), np.uint8)
    kept = cells(x, [str(i) for i in range(300)], answers, count)
    queues = {}
    for i in sorted(range(300), key=lambda i: answers["calibrated"][i] * (1 if truth[i] == predicted[i] else -1)):
        queues.setdefault((truth[i], predicted[i]), []).append(i)
    turns = [(turn, queue[turn]) for turn in range(IN_CELL) for _, queue in sorted(queues.items()) if turn < len(queue)]
    assert sorted(map(int, kept["cells_names"])) == sorted(i for _, i in turns[:count])
    for pair, queue in queues.items():
        of_pair = (kept["cells_truth"] == pair[0]) & (kept["cells_label"] == pair[1])
        assert kept["cells_names"][of_pair].tolist() == [str(i) for i in queue[: of_pair.sum()]]


def test_the_ends_of_a_ranking():
    scores = np.array([0.5, np.nan, -2.0, 3.0, 1.0, 9.0])
    usable = np.array([True, True, True, True, True, False])
    first, last = ends(scores, usable)
    assert (first.tolist(), last.tolist()) == ([3, 4], [2, 0])


def test_ranked_examples_are_found_by_pool_id():
    x = np.arange(6, dtype=np.uint8).reshape(6, 1, 1, 1) * np.ones((1, 2, 2, 3), np.uint8)
    scored = dict(scores=np.array([1.0, 2.0]), selected=np.array([True, True]), labels=np.array([7, 8]))
    kept = ranked(x, None, np.array([4, 5]), np.array([7, -1]), scored)
    assert kept["helpful_images"][0, 0, 0, 0] == 5
    assert (kept["helpful_label"][0], kept["helpful_truth"][0], kept["harmful_label"][0]) == (8, -1, 7)


def test_vectors_have_no_gallery():
    predictions = dict(truth=np.array([0]), predicted=np.array([1]), calibrated=np.array([0.5]))
    assert mistakes(np.zeros((1, 5), np.float32), None, predictions) == {}


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((8, 8, 1), (8, 8)), ((96, 48, 3), (64, 32, 3)), ((5, 7, 2), (5, 7)), ((8, 8, 5), (8, 8, 3))],
)
def test_thumbnails_fit(shape, expected):
    assert thumbnail(np.zeros(shape, np.uint8)).shape == expected


def test_the_newest_core_set_with_scores_counts(tmp_path):
    np.savez(tmp_path / "step-000000009.npz", ids=[1])
    np.savez(tmp_path / "step-000000005.npz", scores=[5.0])
    np.savez(tmp_path / "step-000000003.npz", scores=[3.0])
    assert last_scores(tmp_path)["scores"].tolist() == [5.0]
    assert last_scores(tmp_path / "none") is None
