"""Files of many records: what is damaged counts as missing, and the rest stays."""

import os
import threading

import pytest

from vcc_infuse.label.thumbnails import HEAD, Reader, Records, scan

KEYS = [bytes([number]) * 16 for number in range(4)]
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
        reader = Reader(path)
        reader.tell(enumerate(records.places[key] for key in KEYS))
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
        assert set(records.places) == {KEYS[0], *KEYS[2:]}
        records.add(KEYS[1], CONTENT[1])
    assert found(path) == dict(zip(KEYS, CONTENT, strict=True))
    path.write_bytes(damaged[: HEAD.size] + b"?" + damaged[HEAD.size + 1 :])  # a head: the rest is made again
    with Records(path) as records:
        assert set(records.places) == {KEYS[0]}
        for key, content in zip(KEYS[1:], CONTENT[1:], strict=True):
            records.add(key, content)
    assert found(path) == dict(zip(KEYS, CONTENT, strict=True))


def test_a_second_writer_waits_for_the_first(path):
    done = threading.Event()

    def write():
        with Records(path) as records:
            assert len(records.places) == 5
        done.set()

    with Records(path) as records:
        thread = threading.Thread(target=write)
        thread.start()
        assert not done.wait(0.05)
        records.add(b"k" * 16, b"more")
    thread.join(5)
    assert done.is_set()
