"""The audit of pools that hold nothing useful: a sensible answer, or one line that says what to do."""

import numpy as np
import pytest

import vcc_infuse
from vcc_infuse import SSLData, UserError
from vcc_infuse.pool_audit import AuditedImages, audit_images, find_duplicates, suggest_labels, unit_rows

CENTERS = 3 * np.random.default_rng(0).normal(size=(4, 50))
Y = np.repeat([0, 1, 2], 10)


def rows_of(labels, seed=0):
    return CENTERS[labels] + np.random.default_rng(seed).normal(size=(len(labels), 50))


def images(known, labels, pool):
    rows = unit_rows(np.concatenate([known, pool]))
    parts = np.repeat(["labeled", "pool"], [len(known), len(pool)])
    given = np.concatenate([labels, np.full(len(pool), -1)]).astype(int)
    return AuditedImages(rows, given, parts, [f"{row}.png" for row in range(len(rows))], ("a", "b", "c"))


FOREIGN = rows_of(np.full(60, 3), seed=1)


def test_a_pool_that_is_all_foreign_is_called_so():
    audit = audit_images(images(rows_of(Y), Y, FOREIGN))
    assert audit.foreign_share == 1
    assert len(audit.of("unknown")) == 60
    assert "unknown: 60 of 60" in audit.summary()[1]
    assert "about 100% of the pool seem to be of no class" in audit.summary()[1]
    assert len(audit.of("next_to_label")) == 20  # perhaps a class that nobody has named


@pytest.mark.parametrize("algorithm", [None, "FixMatch"])
def test_a_pool_that_is_all_foreign_does_no_harm(algorithm):
    x = np.concatenate([rows_of(Y), FOREIGN]).astype(np.float32)
    y = np.concatenate([Y, np.full(60, -1)])
    data = SSLData.from_arrays(x, y, rows_of(Y, seed=2).astype(np.float32), Y)
    options = {"preset": "frozen", "progress": False, "steps": 20, "batch_size": 10, "cross_fit": False}
    assert vcc_infuse.train(data, algorithm=algorithm, **options).summary["error"] <= 0.1


def test_without_labels_or_with_one_image_there_is_one_line():
    with pytest.raises(UserError, match="^no image is labeled; label some .*vcc-infuse suggest --data"):
        images(rows_of(Y)[:0], Y[:0], FOREIGN)
    with pytest.raises(UserError, match="two classes .* got one; label a second class$"):
        audit_images(images(rows_of(Y)[:1], Y[:1], FOREIGN[:0]))


def test_an_audit_of_copies_alone_says_that_all_are_copies():
    one = rows_of(Y)[:1]
    audit = audit_images(images(one.repeat(6, 0), Y[::5], one.repeat(20, 0)))
    assert "duplicates: 26 images in 1 groups" in audit.summary()
    assert not audit.of("unknown")
    assert not audit.of("next_to_label")  # none of them is new
    assert {line.suggestion.split(": ")[1] for line in audit.of("duplicate")} >= {
        "labels of the group differ, correct them"
    }


def test_of_copies_alone_one_is_suggested():
    rows = unit_rows(rows_of(Y)[:1].repeat(20, 0))
    assert len(suggest_labels(rows, count=5).rows) == 1
    assert len(find_duplicates(rows).extra()) == 19
    assert len(suggest_labels(rows[:1], count=5).rows) == 1
