"""A set of files changes at once, and a file that is not the one that was written is named."""

import os

import pytest

from vcc_infuse import UserError
from vcc_infuse.utils import manifest

OLD, NEW = {"a": b"one", "b": b"two"}, {"a": b"eins", "b": b"zwei"}


def content(folder):
    """What a reader sees: everything is checked, then read."""
    manifest.check(folder, ["a", "b"])
    return {name: (folder / name).read_bytes() for name in ("a", "b")}


@pytest.mark.parametrize("calls", range(6))
def test_a_process_killed_at_any_point_leaves_the_old_set_or_the_new_one(tmp_path, monkeypatch, calls):
    """Death is an exception that nothing handles, at each call that changes the disk."""
    manifest.publish(tmp_path, OLD)
    left, replace, fsync = calls, os.replace, os.fsync

    def dying(function):
        def call(*words):
            nonlocal left
            if left == 0:
                raise KeyboardInterrupt
            left -= 1
            return function(*words)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", dying(replace))
        patch.setattr(os, "fsync", dying(fsync))
        try:
            manifest.publish(tmp_path, NEW)
        except KeyboardInterrupt:
            assert calls < 6
    # two files and the manifest are flushed, then the manifest takes effect
    assert content(tmp_path) == (OLD if calls < 4 else NEW)
    manifest.publish(tmp_path, NEW)
    assert content(tmp_path) == NEW
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "manifest.json"]


@pytest.mark.parametrize("place", range(5))
def test_every_bit_counts(tmp_path, place):
    manifest.publish(tmp_path, {"a": b"whole", "b": b""})
    damaged = bytearray(b"whole")
    damaged[place] ^= 1
    (tmp_path / "a").write_bytes(damaged)
    with pytest.raises(UserError, match=r"/a is damaged or was changed: its checksum differs"):
        manifest.check(tmp_path, ["a"])
    manifest.check(tmp_path, ["b", "unknown"])


def test_a_log_may_grow_but_not_change(tmp_path):
    log = tmp_path / "log"
    log.write_bytes(b"1\n2\n")
    manifest.publish(tmp_path, {}, ["log"])
    log.write_bytes(b"1\n2\n3\n")
    manifest.check(tmp_path, ["log"])
    for damaged in (b"1\n", b"1\n9\n3\n", b"2\n3\n"):
        log.write_bytes(damaged)
        with pytest.raises(UserError, match="log is damaged"):
            manifest.check(tmp_path, ["log"])
    log.unlink()
    with pytest.raises(UserError, match="log is missing"):
        manifest.check(tmp_path, ["log"])


def test_the_manifest_itself(tmp_path):
    with pytest.raises(UserError, match="manifest.json is missing"):
        manifest.check(tmp_path, [])
    manifest.check(tmp_path, [], required=False)
    manifest.publish(tmp_path, OLD)
    whole = (tmp_path / "manifest.json").read_bytes()
    for damaged in (whole[:-9], whole.replace(b'"a"', b'"c"'), whole.replace(b'"bytes": 3', b'"bytes": 4'), b"[]"):
        (tmp_path / "manifest.json").write_bytes(damaged)
        with pytest.raises(UserError, match="manifest.json is damaged"):
            manifest.check(tmp_path, ["b"])
