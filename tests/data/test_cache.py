import multiprocessing
import os
import time
import warnings

import numpy as np
import pytest

from vcc_infuse.data.cache import cache_folder, cached
from vcc_infuse.errors import UserError


class Builder:
    """Counts its calls."""

    def __init__(self, value=7):
        self.value, self.calls = value, 0

    def __call__(self, allocate):
        self.calls += 1
        allocate("train", (3, 2, 2, 1))[:] = self.value
        return {"classes": ["a", "b"]}


def entry_of(folder):
    (entry,) = [p for p in folder.iterdir() if not p.name.startswith(".")]
    return entry


def test_the_second_call_maps_and_does_not_build(tmp_path):
    build = Builder()
    for _ in range(2):
        arrays, facts = cached(["key"], str(tmp_path), build)
        assert isinstance(arrays["train"], np.memmap)
        assert not arrays["train"].flags.writeable
        assert (arrays["train"] == 7).all()
        assert facts == {"classes": ["a", "b"]}
    assert build.calls == 1


def test_another_key_is_another_entry(tmp_path):
    cached(["key", 32], str(tmp_path), Builder(1))
    arrays, _ = cached(["key", 64], str(tmp_path), Builder(2))
    assert (arrays["train"] == 2).all()


def truncate(path):
    path.write_bytes(path.read_bytes()[:-3])


@pytest.mark.parametrize(
    "damage",
    [
        lambda entry: truncate(entry / "train.npy"),
        lambda entry: (entry / "train.npy").write_bytes(b""),
        lambda entry: (entry / "train.npy").unlink(),
        lambda entry: np.save(entry / "train.npy", np.zeros((9, 9), np.uint8)),
        lambda entry: np.save(entry / "train.npy", np.array([object()]), allow_pickle=True),
        lambda entry: truncate(entry / "facts.json"),
        lambda entry: (entry / "facts.json").unlink(),
        lambda entry: (entry / "facts.json").write_text("[]"),
    ],
)
def test_a_damaged_entry_is_rebuilt(tmp_path, damage):
    build = Builder()
    cached(["key"], str(tmp_path), build)
    damage(entry_of(tmp_path))
    for _ in range(2):
        arrays, _ = cached(["key"], str(tmp_path), build)
        assert (arrays["train"] == 7).all()
    assert build.calls == 2


def test_a_failed_build_leaves_nothing_behind(tmp_path):
    def build(allocate):
        allocate("train", (3, 2, 2, 1))
        raise UserError("bad folder")

    with pytest.raises(UserError, match="bad folder"):
        cached(["key"], str(tmp_path), build)
    assert list(tmp_path.iterdir()) == []


def test_an_unusable_folder_only_warns(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="not usable"):
        arrays, _ = cached(["key"], str(tmp_path / "file" / "cache"), Builder())
    assert (arrays["train"] == 7).all()


def test_a_full_disk_only_warns(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    with pytest.warns(UserWarning, match="No space left"):
        arrays, _ = cached(["key"], str(tmp_path), Builder())
    assert (arrays["train"] == 7).all()
    assert list(tmp_path.iterdir()) == []


def _race(folder, gate, results):
    def build(allocate):
        facts = Builder(5)(allocate)
        gate.wait(timeout=20)  # both are building now, and finish together
        return facts

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        arrays, _ = cached(["key"], folder, build)
    results.put(int(arrays["train"].sum()))


def test_two_processes_may_build_at_once(tmp_path):
    context = multiprocessing.get_context("fork")
    gate, results = context.Barrier(2), context.Queue()
    racers = [context.Process(target=_race, args=(str(tmp_path), gate, results)) for _ in range(2)]
    for racer in racers:
        racer.start()
    assert [results.get(timeout=20) for _ in racers] == [60, 60]
    for racer in racers:
        racer.join()
    assert [p.name[0] for p in tmp_path.iterdir()] != ["."]
    assert len(list(tmp_path.iterdir())) == 1


def test_leftovers_of_killed_processes_are_removed_after_a_day(tmp_path):
    for name, age in (("old", 2 * 86400), ("young", 60)):
        (tmp_path / f".building-{name}").mkdir()
        os.utime(tmp_path / f".building-{name}", times=(time.time() - age,) * 2)
    cached(["key"], str(tmp_path), Builder())
    assert [p.name for p in tmp_path.glob(".building-*")] == [".building-young"]


def test_cache_folder_follows_argument_then_environment_then_home(monkeypatch, tmp_path):
    monkeypatch.setenv("VCC_INFUSE_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    assert cache_folder("/elsewhere").as_posix() == "/elsewhere"
    monkeypatch.delenv("VCC_INFUSE_CACHE")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert cache_folder().as_posix() == "/home/somebody/.cache/vcc-infuse"
