"""Files of many records: what is damaged counts as missing, and the rest stays."""

import os
import threading
import tracemalloc

import numpy as np
import pytest

from vcc_infuse.label.thumbnails import HEAD, KEY, KeyIndex, Places, Reader, Records, scan

KEYS = [bytes([number + 1]) * 16 for number in range(4)]
CONTENT = [b"", b"one", b"the second", bytes(100)]


@pytest.fixture
def path(tmp_path):
    with Records(tmp_path / "x.bin") as records:
        for key, content in zip(KEYS, CONTENT, strict=True):
            records.add(key, content)
    return tmp_path / "x.bin"


def found(path):
    """What a reader is given."""
    file = os.open(path, os.O_RDONLY)
    try:
        return {key: content for key, _, content in scan(file) if content is not None}
    finally:
        os.close(file)


def test_what_was_added_is_found_again(path):
    assert found(path) == dict(zip(KEYS, CONTENT, strict=True))
    with Records(path) as records:
        places = KeyIndex(records.keys).find(np.array(KEYS, KEY))
        reader = Reader(path, len(KEYS))
        reader.tell(Places(np.arange(len(KEYS)), records.offsets[places], records.lengths[places]))
        assert [reader.get(number) for number in range(4)] == [None, *CONTENT[1:]]
        reader.close()


def test_whichever_bit_is_damaged_no_record_is_another_one(path):
    whole = path.read_bytes()
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        left = found(path)
        assert len(left) < 4
        assert left.items() <= dict(zip(KEYS, CONTENT, strict=True)).items()


def test_what_is_damaged_can_be_added_again(path):
    damaged = bytearray(path.read_bytes())
    damaged[2 * HEAD.size] ^= 1  # the content of the second: the others stay
    path.write_bytes(damaged)
    with Records(path) as records:
        assert set(records.keys) == {KEYS[0], *KEYS[2:]}
        records.add(KEYS[1], CONTENT[1])
    assert found(path) == dict(zip(KEYS, CONTENT, strict=True))
    path.write_bytes(damaged[: HEAD.size] + b"?" + damaged[HEAD.size + 1 :])  # a head: the rest is made again
    with Records(path) as records:
        assert set(records.keys) == {KEYS[0]}
        for key, content in zip(KEYS[1:], CONTENT[1:], strict=True):
            records.add(key, content)
    assert found(path) == dict(zip(KEYS, CONTENT, strict=True))


def test_a_second_writer_waits_for_the_first(path):
    done = threading.Event()

    def write():
        with Records(path) as records:
            assert len(records.keys) == 5
        done.set()

    with Records(path) as records:
        thread = threading.Thread(target=write)
        thread.start()
        assert not done.wait(0.05)
        records.add(b"k" * 16, b"more")
    thread.join(5)
    assert done.is_set()


def test_keys_are_found_in_their_array_whatever_their_bytes():
    rng = np.random.default_rng(0)
    keys = [bytes(16), b"\0" * 15 + b"\1", b"\1" + b"\0" * 15, b"\xff" * 16, *(rng.bytes(16) for _ in range(200))]
    index = KeyIndex(np.array(keys, KEY))
    assert index.find(np.array(keys, KEY)).tolist() == list(range(len(keys)))
    assert index.find(np.array([b"\0" * 14 + b"\1\0", b"\xff" * 15 + b"\xfe", rng.bytes(16)], KEY)).tolist() == [-1] * 3
    assert KeyIndex(np.array([b"a", b"b", b"a"], KEY)).find(np.array([b"a"], KEY)).tolist() == [2]  # the newest
    assert KeyIndex(np.zeros(0, KEY)).find(np.array([b"a"], KEY)).tolist() == [-1]


def test_a_record_whose_key_ends_in_zeros_is_found_after_a_start(tmp_path):
    key = np.array([b"k" + bytes(15)], KEY)[0]
    for content in (b"older", b"newer"):
        with Records(tmp_path / "x.bin") as records:
            records.add(key, content)
    with Records(tmp_path / "x.bin") as records:
        (place,) = KeyIndex(records.keys).find(np.array([key]))
        assert records.keys[place] == key
        assert records.lengths.tolist() == [5, 5]
        assert place == 1


def test_a_million_places_take_no_dictionary(tmp_path):
    """Twelve bytes per image in the reader; 28 per record, and eight for the order of the keys, in the writer."""
    rows = 20_000
    keys = np.arange(2 * rows, dtype=np.uint64).view(KEY)
    tracemalloc.start()
    with Records(tmp_path / "x.bin") as records:
        for key in keys:
            records.add(key, b"")
        assert tracemalloc.get_traced_memory()[1] < 5 * rows  # nothing is kept of what was added
    with Records(tmp_path / "x.bin") as records:
        places = KeyIndex(records.keys).find(keys)
        reader = Reader(tmp_path / "x.bin", rows)
        reader.tell(Places(np.arange(rows), records.offsets[places], records.lengths[places]))
        assert tracemalloc.get_traced_memory()[1] < 120 * rows
    tracemalloc.stop()
