"""Names of a folder come in the order of a plain sort, one folder at a time."""

import os

import pytest

from vcc_infuse.data.images.store import is_hidden, open_store

TREE = (
    "a.png", "a/1.png", "a/b/2.png", "a-b/3.png", "a b/4.png", "A/5.png", "é/6.png", "z.png", ".hidden/7.png",
    "a/.8.png", "a/notes.txt", "__MACOSX/9.png", "a\nb.png", "0/10.png",
)  # fmt: skip


@pytest.fixture
def tree(tmp_path):
    for name in TREE:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    (tmp_path / "dead.png").symlink_to(tmp_path / "nowhere.png")
    return tmp_path


def test_the_order_is_that_of_a_plain_sort(tree):
    with open_store(tree) as store:
        found = list(store.images())
        assert found == sorted(name for name in TREE if name.endswith(".png") and not is_hidden(name))
        assert found == [name for name in store.stamps if name.endswith(".png")]
        assert list(store.stamps) == sorted(store.stamps)
        assert "a/b/" in store.stamps


def test_a_folder_is_not_read_before_its_turn(tree, monkeypatch):
    read, scandir = [], os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: read.append(os.path.basename(path)) or scandir(path))
    with open_store(tree) as store:
        assert read == []
        assert next(store.images()) == "0/10.png"
    assert read == [tree.name, "0"]
