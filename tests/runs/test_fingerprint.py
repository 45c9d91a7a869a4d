"""What differs between two runs, in sentences; which rows of a dataset are those of a run."""

import numpy as np
import pytest

from vcc_infuse.data.dataset import Examples
from vcc_infuse.errors import UserError
from vcc_infuse.runs.fingerprint import compare, content_digest, options_of, overlap, refuse, row_digests, same_rows

IMAGES = np.arange(24, dtype=np.uint8).reshape(6, 2, 2, 1)


def rows(*train):
    return {"train": row_digests(IMAGES[list(train)]), "train_labels": np.zeros(len(train), np.int64)}


def fingerprint(**changes):
    facts = dict(config={"lr": 0.1}, classes=["cat", "dog"], data="a", split="b", network=None, processes=1, total=9)
    return facts | changes


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"config": {"lr": 0.2, "seed": 1}}, ["config: lr was 0.1, is 0.2", "config: seed was None, is 1"]),
        ({"classes": ["cat", "cow"]}, ["class 1 was 'dog', is 'cow'"]),
        ({"classes": ["cat"]}, ["there were 2 classes, are 1"]),
        ({"data": "c"}, ["data: 1 training images are new, 2 are gone or changed"]),
        ({"split": "c"}, ["split: other images are labeled or in the pool than before"]),
        ({"network": "c"}, ["network: the frozen network, its weights or its views are not those of the run"]),
        ({"processes": 2}, ["processes: was 1, is 2"]),
        ({"total": 20}, []),
    ],
    ids=str,
)
def test_every_difference_is_a_sentence(changes, expected):
    assert compare(fingerprint(), fingerprint(**changes), (rows(0, 1, 2), rows(2, 3))) == expected


def test_the_same_images_in_another_order():
    assert compare(fingerprint(), fingerprint(data="c"), (rows(0, 1), rows(1, 0))) == [
        "data: the images are the same, but in another order"
    ]


def test_only_options_that_decide_what_is_trained_count():
    config = {"data": "photos", "device": "cpu", "model": {"class_path": "X", "init_args": {"width": 4}}, "lr": 0.1}
    assert options_of(config) == {"model.class_path": "X", "model.width": 4, "lr": 0.1}


def test_a_refusal_is_one_line_unless_the_user_insists():
    assert refuse([], "run", False, "put it back") is None
    with pytest.raises(UserError, match=r"^run has changed: a \(and 1 more\); put it back$"):
        refuse(["a", "b"], "run", False, "put it back")
    assert refuse(["a"], "run", True, "put it back") == "run has changed: a; continuing because of --force"


def test_rows_are_known_by_their_content():
    digests = row_digests(IMAGES)
    assert len(set(digests.tolist())) == len(IMAGES)
    assert (row_digests(IMAGES[::-1]) == digests[::-1]).all()
    part = Examples(IMAGES[:3], np.array([0, 1, 0]))
    known = {"train": digests[2:], "test": digests[:3], "test_labels": np.array([0, 1, 0])}
    assert overlap(part, known) == 1
    assert same_rows(part, known)
    assert not same_rows(Examples(IMAGES[:3], np.array([0, 1, 1])), known)
    assert content_digest(digests) != content_digest(digests[::-1])
