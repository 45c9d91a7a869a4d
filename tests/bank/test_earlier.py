"""What changed datasets take over from earlier banks, against counted forwards and slow searches."""

import itertools
import os
from dataclasses import replace
from multiprocessing import get_context

import numpy as np
import pytest
import torch
from tests.bank.test_bank import CONFIG, MEAN, STD, OnDemand, fill, make_bank, make_dataset
from tests.helpers.processes import fork, wait

from vcc_infuse.bank import earlier, storage
from vcc_infuse.bank import encoder as encoder_module
from vcc_infuse.data.dataset import Dataset, Examples
from vcc_infuse.utils.seeding import seed_chunk

LAZY = replace(CONFIG, lazy=True)
VIEWS = len(CONFIG.names)


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch):
    monkeypatch.setattr(storage, "CHUNK", 8)
    monkeypatch.setattr(encoder_module, "fast_bf16", lambda device: False)


def dataset_of(train, test):
    parts = [Examples(x, np.arange(len(x)) % 2) for x in (train, test)]
    return Dataset(*parts, ("a", "b"), MEAN, STD)


def images(seed, count):
    return np.random.default_rng(seed).integers(0, 256, (count, 12, 12, 3), np.uint8)


def embedded_views(bank, work):
    """How many images went through the network while `work` was done."""
    counted = []
    hook = bank.encoder.register_forward_hook(lambda net, inputs, out: counted.append(len(out)))
    work()
    hook.remove()
    return sum(counted)


def place(image, pool):
    """Where an image is, by comparing pixels; None if it is not there."""
    return next((row for row, other in enumerate(pool) if np.array_equal(image, other)), None)


def changed(first):
    """Five images removed, three added, four moved to the front, two relabeled, the test set as it was."""
    x = first.train.x
    kept = np.delete(x, [2, 3, 9, 17, 19], 0)
    moved = np.concatenate([kept[-4:], images(5, 2), kept[:-4], images(6, 1)])
    dataset = dataset_of(moved, first.test.x)
    y = dataset.train.y.copy()
    y[:2] = 1 - y[:2]
    return replace(dataset, train=replace(dataset.train, y=y))


def test_only_new_images_are_embedded(tmp_path):
    before = fill(make_bank(tmp_path))
    bank = make_bank(tmp_path, changed(before.source))
    assert bank.folder != before.folder
    assert (bank.taken, bank.new_images(), bank.missing()) == (15 + 5, 3, 3 * VIEWS)
    assert embedded_views(bank, lambda: fill(bank)) == 3 * VIEWS
    old, new = before.images["train"], bank.images["train"]
    for row, image in enumerate(new):
        origin = place(image, old)
        assert (origin is None) == (row in (4, 5, 18 - 1))
        if origin is not None:
            np.testing.assert_array_equal(bank.features["train"][row], before.features["train"][origin])
    np.testing.assert_array_equal(bank.features["test"], before.features["test"])
    for number, rows in ((0, [4, 5]), (2, [17])):  # drawn for the new ones of a chunk, with its seed
        seed_chunk(0, 0, number)
        raw = torch.from_numpy(new[rows])
        with torch.no_grad():
            slots = [bank.encoder(bank.views(name, raw)) for name in CONFIG.names]
        np.testing.assert_allclose(bank.features["train"][rows], torch.stack(slots, 1), rtol=2e-3, atol=1e-4)
    assert make_bank(tmp_path, changed(before.source)).missing() == 0


def test_a_chain_of_changes_costs_what_is_new(tmp_path):
    """Every image is embedded once, whichever bank has it; going back costs nothing."""
    pool = images(0, 40)
    total = 0
    for start in (0, 6, 12, 6, 0):
        bank = make_bank(tmp_path, dataset_of(pool[start : start + 20], pool[35:]))
        total += embedded_views(bank, lambda bank=bank: fill(bank))
    assert total == 32 * VIEWS + 5


def test_another_recipe_takes_nothing_over(tmp_path):
    fill(make_bank(tmp_path))
    later = changed(make_dataset())
    for options in ({"seed": 1}, {"flip": False}, {"config": replace(CONFIG, weak=2)}, {"config": LAZY}):
        assert make_bank(tmp_path, later, **options).taken == 0
    larger = dataset_of(np.zeros((4, 6, 24, 3), np.uint8), np.zeros((2, 6, 24, 3), np.uint8))
    fill(make_bank(tmp_path, dataset_of(np.zeros((4, 12, 12, 3), np.uint8), np.zeros((2, 12, 12, 3), np.uint8))))
    assert make_bank(tmp_path, larger).missing() == 4 * VIEWS + 2, "the same bytes in another shape"


def test_images_that_change_their_part(tmp_path):
    """A test image has a plain view only, so that it serves a test set, and a lazy bank."""
    pool = images(0, 20)
    for config in (CONFIG, LAZY):
        before = fill(make_bank(tmp_path, dataset_of(pool[:15], pool[15:]), config=config))
        bank = make_bank(tmp_path, dataset_of(pool[5:], pool[:5]), config=config)
        np.testing.assert_array_equal(bank.features["test"][:, 0], before.features["train"][:5, 0])
        expected = 0 if config.lazy else 5 * VIEWS
        assert bank.missing() == expected
        assert embedded_views(bank, lambda bank=bank: fill(bank)) == expected
        np.testing.assert_allclose(bank.features["train"][10:, 0], before.features["test"][:, 0], rtol=2e-3, atol=1e-4)


def test_images_that_occur_several_times_keep_their_own_views(tmp_path):
    image = images(0, 1)
    first = np.concatenate([image, image, images(1, 6)])
    before = fill(make_bank(tmp_path, dataset_of(first, images(2, 2))))
    bank = make_bank(tmp_path, dataset_of(np.concatenate([images(1, 6), image, image, image]), images(2, 2)))
    assert bank.missing() == 0
    for row, origin in zip(range(9), (*range(2, 8), 0, 1, 0), strict=True):
        np.testing.assert_array_equal(bank.features["train"][row], before.features["train"][origin])


def test_pairs_are_those_of_a_slow_search():
    rng = np.random.default_rng(0)
    # Both halves follow from the image.
    wanted, known = (rng.integers(0, 9, (count, 1)).astype(np.uint64) * [[1, 7]] for count in (50, 12))
    wanted, known = wanted.astype(np.uint64), known.astype(np.uint64)
    found = dict(zip(*(places.tolist() for places in earlier._matches(wanted, known)), strict=True))
    turns = {}
    for row, digest in enumerate(wanted.tolist()):
        same = [place for place, other in enumerate(known.tolist()) if other == digest]
        turn = turns.setdefault(tuple(digest), itertools.count())
        assert found.get(row) == (same[next(turn) % len(same)] if same else None)
    other = wanted.copy()
    other[:, 1] += 1
    assert not len(earlier._matches(other, known)[0]), "both halves count"


# --- damage, death, others


@pytest.mark.parametrize("name", ["train.npy", "train-marks.npy", "train-digests.npy"])
def test_damage_is_not_copied(tmp_path, name):
    before = fill(make_bank(tmp_path))
    whole = np.array(before.features["train"])
    content = bytearray((before.folder / name).read_bytes())
    content[-2] ^= 64  # of the last image
    (before.folder / name).write_bytes(content)
    later = dataset_of(np.concatenate([before.images["train"], images(5, 2)]), before.images["test"])
    bank = make_bank(tmp_path, later)
    assert (bank.taken, bank.missing()) == (19 + 5, 3 * VIEWS)
    np.testing.assert_array_equal(bank.features["train"][:19], whole[:19])
    fill(bank)
    np.testing.assert_allclose(bank.features["train"][19, 0], whole[19, 0], rtol=2e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["train.npy", "train-marks.npy", "train-digests.npy"])
@pytest.mark.parametrize("damage", ["short", "rubbish", "empty", "other", "gone"])
def test_unreadable_files_of_an_earlier_bank_are_passed_over(tmp_path, name, damage):
    path = fill(make_bank(tmp_path)).folder / name
    content = path.read_bytes()
    if damage == "gone":
        path.unlink()
    elif damage == "other":
        np.save(path, np.zeros((2, 3, 4), np.float16))
    else:
        path.write_bytes({"short": content[:-1], "rubbish": b"x" * len(content), "empty": b""}[damage])
    bank = make_bank(tmp_path, changed(make_dataset()))
    assert (bank.taken, bank.missing()) == (5, 18 * VIEWS), "the test images are taken"


def test_damage_in_what_was_taken_over_is_mended_from_where_it_came(tmp_path):
    before = fill(make_bank(tmp_path))
    bank = fill(make_bank(tmp_path, changed(before.source)))
    whole = np.array(bank.features["train"])
    bank.stored["train"].file.write(np.array([6]), whole[:1])
    with pytest.warns(UserWarning, match="1 chunks of the bank"):
        again = make_bank(tmp_path, changed(before.source))
    assert again.missing() == 2 * VIEWS, "the two new images of that chunk"
    np.testing.assert_array_equal(fill(again).features["train"], whole)


def test_death_while_copying(tmp_path, monkeypatch):
    """After the features of the second block, before their marks."""
    before = fill(make_bank(tmp_path / "a"))
    whole = fill(make_bank(tmp_path / "a", changed(before.source)))
    fill(make_bank(tmp_path / "b"))
    write, calls = storage.ArrayFile.write, itertools.count()

    def dying(file, rows, values):
        if file.path.name == "train-marks.npy" and next(calls) == 1:
            raise KeyboardInterrupt
        write(file, rows, values)

    with monkeypatch.context() as patch:
        patch.setattr(storage.ArrayFile, "write", dying)
        with pytest.raises(KeyboardInterrupt):
            make_bank(tmp_path / "b", changed(before.source))
    bank = make_bank(tmp_path / "b", changed(before.source))
    assert (bank.taken, bank.missing()) == (15 + 5 - 8, 3 * VIEWS)
    for part in ("train", "test"):
        np.testing.assert_array_equal(fill(bank).features[part], whole.features[part])


def test_death_while_embedding_what_is_new(tmp_path):
    before = fill(make_bank(tmp_path / "a"))
    whole = fill(make_bank(tmp_path / "a", changed(before.source)))
    fill(make_bank(tmp_path / "b"))
    bank = make_bank(tmp_path / "b", changed(before.source))

    def dying(function, jobs):
        yield function(next(jobs))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fill(bank, run=dying)
    again = make_bank(tmp_path / "b", changed(before.source))
    assert (again.taken, again.missing()) == (0, VIEWS)
    np.testing.assert_array_equal(fill(again).features["train"], whole.features["train"])


def test_processes_share_what_is_new(tmp_path):
    before = fill(make_bank(tmp_path))
    later = changed(before.source)
    banks = [make_bank(tmp_path, later) for _ in range(2)]  # the second finds what the first has copied
    assert [bank.taken for bank in banks] == [20, 0]
    counts = [embedded_views(bank, lambda r=r, b=bank: fill(b, rank=r, world=2)) for r, bank in enumerate(banks)]
    assert counts == [3 * VIEWS, 0], "the new images are in the chunks 0 and 2"
    assert make_bank(tmp_path, later).missing() == 0


def test_two_processes_at_the_same_time(tmp_path):
    pool = images(0, 400)
    before = fill(make_bank(tmp_path, dataset_of(pool[:380], pool[380:])))
    both_opened = get_context("fork").Barrier(2, timeout=60)

    def take_part(rank):
        bank = make_bank(tmp_path, dataset_of(pool[::-1], pool[:9]))
        both_opened.wait()
        fill(bank, rank=rank, world=2)
        print(bank.taken)

    logs = [tmp_path / "said0", tmp_path / "said1"]
    processes = [fork(lambda rank=rank: take_part(rank), log) for rank, log in enumerate(logs)]
    assert [wait(process) for process in processes] == [0, 0]
    assert max(int(log.read_text()) for log in logs) > 0
    bank = make_bank(tmp_path, dataset_of(pool[::-1], pool[:9]))  # which compares all checksums
    assert bank.missing() == 0
    np.testing.assert_array_equal(bank.features["train"][20:], before.features["train"][::-1])


def test_copying_reads_a_block_at_a_time(tmp_path, monkeypatch):
    y = np.arange(300) % 2
    fill(make_bank(tmp_path, Dataset(Examples(OnDemand(300), y), None, ("a", "b"), MEAN, STD)))
    sizes, copy = [], earlier._copy_block
    monkeypatch.setattr(earlier, "_copy_block", lambda *args: (sizes.append(len(args[3])), copy(*args))[1])
    make_bank(tmp_path, Dataset(Examples(OnDemand(290), y[:290]), None, ("a", "b"), MEAN, STD))
    assert (sum(sizes), max(sizes)) == (290, 8)


# --- lazy banks


def test_a_lazy_bank_takes_over_what_is_there_of_each_image(tmp_path):
    before = fill(make_bank(tmp_path, config=LAZY))
    before.ensure(np.array([0, 4, 12]))
    later = changed(before.source)
    bank = make_bank(tmp_path, later, config=LAZY)
    assert (bank.taken, bank.missing()) == (20, 3)
    assert embedded_views(bank, lambda: fill(bank)) == 3
    origins = [place(image, before.images["train"]) for image in bank.images["train"]]
    rows = [row for row, origin in enumerate(origins) if origin in (0, 4, 12)]
    assert len(rows) == 3
    every = np.arange(18)
    np.testing.assert_array_equal(np.setdiff1d(every, bank.stored["train"].missing_rows(every)), rows)
    assert embedded_views(bank, lambda: bank.ensure(every)) == 15 * (VIEWS - 1)
    for row in rows:
        np.testing.assert_array_equal(bank.features["train"][row], before.features["train"][origins[row]])
    plain = [row for row in range(18) if row not in rows and origins[row] is not None]
    np.testing.assert_array_equal(
        bank.features["train"][plain, 0], before.features["train"][[origins[row] for row in plain], 0]
    )


def test_a_lazy_bank_takes_all_views_where_a_second_bank_has_them(tmp_path):
    """Whichever of the two is read first."""
    pool = images(0, 30)
    banks = [fill(make_bank(tmp_path, dataset_of(pool[n : n + 20], pool[25:]), config=LAZY)) for n in (0, 2)]
    banks[0].ensure(np.array([10, 11]))
    banks[1].ensure(np.array([15]))
    bank = make_bank(tmp_path, dataset_of(pool[5:20], pool[25:]), config=LAZY)
    every = np.arange(15)
    assert np.setdiff1d(every, bank.stored["train"].missing_rows(every)).tolist() == [5, 6, 12]
    np.testing.assert_array_equal(bank.features["train"][[5, 6]], banks[0].features["train"][[10, 11]])
    np.testing.assert_array_equal(bank.features["train"][12], banks[1].features["train"][15])


# --- what is no longer used


def test_banks_that_nobody_opens_are_removed(tmp_path):
    banks = [fill(make_bank(tmp_path, make_dataset(seed))) for seed in range(3)]
    long_ago = [40, 3, 8]
    for bank, days in zip(banks, long_ago, strict=True):
        time = bank.folder.stat().st_mtime - days * 86400
        os.utime(bank.folder, (time, time))
    listed = earlier.list_banks(tmp_path)
    assert sorted(round(bank.days) for bank in listed) == sorted(long_ago)
    files = sum(path.stat().st_size for path in banks[0].folder.iterdir())
    assert all(bank.megabytes == files / 1e6 for bank in listed)
    make_bank(tmp_path, make_dataset(2))  # opened again
    assert [bank.path for bank in earlier.prune(tmp_path, 3)] == sorted(bank.folder for bank in banks[:2])
    assert [bank.path for bank in earlier.list_banks(tmp_path)] == [banks[2].folder]
    assert not list(banks[2].folder.parent.glob(".removed*"))
    assert earlier.prune(tmp_path / "nowhere", 0) == []
