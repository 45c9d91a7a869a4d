"""The state: any number of actions undone and done again leads where the remaining ones alone would lead."""

import numpy as np
import pytest

from vcc_infuse.errors import UserError
from vcc_infuse.label.state import CONFIRMED, LabelState

IMAGES = 12


def snapshot(state):
    arrays = tuple(a.tolist() for a in (state.label, state.source, state.status, state.audit))
    refused = {pair for pair, value in state.refused.items() if value}
    return arrays, state.classes, refused, state.batches, state.answers


def random_action(rng, state):
    """Something that a person may do now; None if the choice is not possible."""
    classes = list(state.open_classes())
    pick = rng.choice(["label", "skip", "foreign", "unlabel", "new_class", "rename", "key", "merge", "grid"])
    if pick == "new_class":
        return {"action": pick, "name": f"class {rng.integers(10**9)}"}
    if pick in ("skip", "foreign", "unlabel"):
        return {"action": pick, "image": int(rng.integers(IMAGES))}
    if not classes:
        return None
    cls = int(rng.choice(classes))
    if pick == "label":
        return {"action": pick, "image": int(rng.integers(IMAGES)), "class": cls, "audit": bool(rng.integers(2))}
    if pick == "rename":
        return {"action": pick, "class": cls, "name": f"renamed {rng.integers(10**9)}"}
    if pick == "key":
        return {"action": pick, "class": cls, "key": ""}
    if pick == "merge":
        other = int(rng.choice(classes))
        return None if other == cls else {"action": pick, "class": cls, "into": other}
    images = rng.permutation(IMAGES)[:6].tolist()
    tiles = [{"id": i, "right": bool(rng.integers(2)), "class": rng.choice([None, cls])} for i in images[:3]]
    number = len(state.batches) + int(rng.integers(2, 1000))
    return {"action": pick, "class": cls, "batch": number, "members": images, "tiles": tiles,
            "promised": bool(rng.integers(2))}  # fmt: skip


@pytest.mark.parametrize("seed", range(20))
def test_undo_and_redo_are_a_replay_of_what_remains(seed):
    rng = np.random.default_rng(seed)
    state = LabelState(IMAGES)
    done, undone = [], []
    for _ in range(60):
        kind = rng.choice(["act", "act", "undo", "redo"])
        if kind == "undo" and done:
            state.apply({"action": "undo"})
            undone.append(done.pop())
        elif kind == "redo" and undone:
            state.apply({"action": "redo"})
            done.append(undone.pop())
        elif kind == "act" and (action := random_action(rng, state)) is not None:
            state.check(action)
            state.apply(action)
            done.append(action)
            undone = []
        fresh = LabelState(IMAGES)
        for action in done:
            fresh.apply(action)
        assert snapshot(state) == snapshot(fresh)
        assert (state.undo_depth, state.redo_depth) == (len(done), len(undone))


def test_class_numbers_are_never_used_again():
    state = LabelState(2)
    state.apply({"action": "new_class", "name": "a"})
    state.apply({"action": "undo"})
    state.apply({"action": "new_class", "name": "b"})
    assert list(state.classes) == [1]


def test_a_class_that_is_made_again_has_the_number_it_had():
    """Otherwise labels that are done again would belong to a class that is not there."""
    state = LabelState(2)
    state.apply({"action": "new_class", "name": "a"})
    state.apply({"action": "label", "image": 1, "class": 0})
    for name in ("undo", "undo", "redo", "redo"):
        state.apply({"action": name})
    assert list(state.classes) == [0]
    assert state.label.tolist() == [-1, 0]


def grid(wrong=(), promised=False, tiles=(0, 1, 2), **fields):
    tiles = [{"id": i, "right": i not in wrong, "class": None} for i in tiles]
    return {"action": "grid", "class": 0, "batch": 7, "members": [0, 1, 2, 3, 4], "tiles": tiles,
            "promised": promised, **fields}  # fmt: skip


def test_a_grid_confirms_its_right_tiles_and_the_rest_only_if_it_is_promised():
    state = LabelState(8)
    state.apply({"action": "new_class", "name": "a"})
    state.apply(grid(wrong=(1,)))
    assert np.flatnonzero(state.label == 0).tolist() == [0, 2]
    state.apply(grid(promised=True, tiles=(3,)))
    assert np.flatnonzero(state.label == 0).tolist() == [0, 2, 3, 4]  # not 1, which was refused
    assert (state.source[[0, 2, 3, 4]] == CONFIRMED).all()
    counts = state.batches[7].counts()
    assert (counts.size, counts.looked_at, counts.wrong, counts.looks) == (5, 4, 1, 2)
    state.apply({"action": "undo"})
    assert np.flatnonzero(state.label == 0).tolist() == [0, 2]


@pytest.mark.parametrize(
    ("action", "problem"),
    [
        ({"action": "label", "image": 8, "class": 0}, "image must be a number from 0 to 7"),
        ({"action": "label", "image": True, "class": 0}, "image must be a number"),
        ({"action": "label", "image": "../x", "class": 0}, "image must be a number"),
        ({"action": "label", "image": 1, "class": 9}, "class must be the number of a class"),
        ({"action": "label", "image": 1, "class": 1.0}, "class must be the number of a class"),
        ({"action": "label", "image": 1, "class": 0, "suggested": "x"}, "suggested must be"),
        ({"action": "new_class", "name": "  "}, "name must be 1 to 100 printable"),
        ({"action": "new_class", "name": "a\nb"}, "printable"),
        ({"action": "new_class", "name": "x" * 101}, "printable"),
        ({"action": "new_class", "name": 3}, "printable"),
        ({"action": "new_class", "name": "a"}, "there is a class 'a' already"),
        ({"action": "new_class", "name": "c", "key": "ab"}, "key must be one letter or digit"),
        ({"action": "new_class", "name": "c", "key": "1"}, "the key 1 belongs to another class"),
        ({"action": "rename", "class": 0, "name": "b"}, "there is a class 'b' already"),
        ({"action": "merge", "class": 0, "into": 0}, "into itself"),
        ({"action": "merge", "class": 0, "into": 5}, "class must be"),
        ({"action": "redo"}, "nothing to do again"),
        ({"action": "import", "labels": []}, "--label_file"),
        ({"action": "format"}, "action must be one of"),
        ({"action": "__class__"}, "action must be one of"),
        ({"action": "grid", "class": 0, "batch": 1, "tiles": []}, "tiles must be"),
        ({"action": "grid", "class": 0, "batch": 1, "tiles": [{"id": 1, "right": True}]}, "no longer known"),
        (grid(tiles=(1, 1)), "each image once"),
        ({**grid(), "tiles": [{"id": 1, "right": 1}]}, "right must be true or false"),
    ],
)
def test_what_cannot_be_done_is_refused(action, problem):
    state = LabelState(8)
    state.apply({"action": "new_class", "name": "a", "key": "1"})
    state.apply({"action": "new_class", "name": "b"})
    before = snapshot(state)
    with pytest.raises(UserError, match=problem):
        state.check(action)
    assert snapshot(state) == before


def test_nothing_to_undo_is_said():
    with pytest.raises(UserError, match="nothing to undo"):
        LabelState(3).check({"action": "undo"})


def test_a_merged_class_keeps_its_labels_under_the_other_name():
    state = LabelState(4)
    for name in "ab":
        state.apply({"action": "new_class", "name": name})
    state.apply({"action": "label", "image": 3, "class": 0})
    state.apply({"action": "merge", "class": 0, "into": 1})
    assert state.label.tolist() == [-1, -1, -1, 1]
    assert list(state.open_classes()) == [1]


def test_only_time_at_the_page_counts():
    state = LabelState(4)
    for seconds in (2, 3600, None):
        state.apply({"action": "skip", "image": 0, "seconds": seconds})
    assert state.seconds == 62
