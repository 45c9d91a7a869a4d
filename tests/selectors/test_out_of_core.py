"""Streamed ranking against ranking the whole table, its memory, and rows and names on disk."""

import tempfile
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.scored_rows import make_table, slow_order

from vcc_infuse.selectors.out_of_core import (
    DiskNames,
    DiskTable,
    RandomScores,
    best_of_stream,
    temp_file,
    top_of_stream,
)
from vcc_infuse.selectors.ranking import Scored, best, order


def chunks_of(rows, size):
    for start in range(0, len(rows.ids), size):
        yield Scored(*(column[start : start + size] for column in rows))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 300), st.integers(1, 120), st.integers(1, 50), st.integers(0, 40), st.integers(0, 99))
def test_a_stream_gives_what_sorting_gives(count, keep, size, slack, seed):
    rows = make_table(count, seed)
    found = top_of_stream(chunks_of(rows, size), keep, slack)
    assert found.ids.tolist() == order(rows)[:keep].tolist()
    np.testing.assert_array_equal(found.scores, rows.scores[found.ids])


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 300), st.integers(1, 150), st.integers(1, 50), st.integers(0, 40), st.integers(0, 99))
@pytest.mark.parametrize("quota", ["none", "proportional", "equal"])
def test_a_stream_with_a_class_quota_keeps_what_the_whole_table_would(quota, count, keep, size, slack, seed):
    rows, keep = make_table(count, seed), min(keep, count)
    found = best_of_stream(list(chunks_of(rows, size)), keep, quota, 4, slack)
    kept = best(rows, keep, quota, 4)
    assert found.ids.tolist() == [i for i in slow_order(rows) if i in set(kept.tolist())]


class LongStream:
    """300,000 rows, generated again in each iteration."""

    def __iter__(self):
        for start in range(0, 300_000, 1000):
            rows = make_table(1000, start, levels=10**6)
            yield rows._replace(ids=rows.ids + start)


@pytest.mark.parametrize("quota", ["none", "proportional", "equal"])
def test_a_stream_holds_few_rows_in_memory(quota):
    tracemalloc.start()
    found = best_of_stream(LongStream(), 500, quota, 4, slack=2000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(found.ids) == 500
    assert peak < 1_500_000 < 300_000 * 33  # bytes; the whole stream has 33 per row


def test_an_empty_stream_is_refused():
    with pytest.raises(ValueError, match="empty"):
        top_of_stream([], 3)


def test_random_scores_replace_harmless_scores_only_and_are_the_same_in_each_pass():
    rows = make_table(4000)._replace(scores=np.random.default_rng(1).normal(size=4000).astype(np.float32))
    harmful = rows.selected & (rows.scores < 0)
    stream = RandomScores(list(chunks_of(rows, 100)), seed=3)
    first, again = (np.concatenate([chunk.scores for chunk in stream]) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert first[harmful].max() < 0 <= first[~harmful].min()
    np.testing.assert_array_equal(first[harmful], rows.scores[harmful])
    free = rows.selected & ~harmful
    assert abs(np.corrcoef(first[free], rows.scores[free])[0, 1]) < 0.1  # the size of a harmless score has no effect
    assert abs(first[free].mean() - 0.5) < 0.04
    other = np.concatenate([chunk.scores for chunk in RandomScores(list(chunks_of(rows, 100)), seed=4)])
    assert (first[free] != other[free]).mean() > 0.99


def test_rows_come_back_from_disk_as_often_as_needed(tmp_path):
    rows = make_table(100)
    with temp_file(tmp_path) as file:
        table = DiskTable(file)
        for chunk in chunks_of(rows, 30):
            table.add(chunk)
        assert (table.count, table.selected) == (100, rows.selected.sum())
        for _ in range(2):
            found = [np.concatenate(columns) for columns in zip(*table, strict=True)]
            for column, expected in zip(found, rows, strict=True):
                np.testing.assert_array_equal(column, expected)
    assert list(tmp_path.iterdir()) == []


def test_names_come_back_from_disk_in_any_order():
    given = ["a.png", "a/b/2.png", "a b/4.png", "é/6.png", "a\nb.png", "", "\udcff.png", "x" * 5000]
    with tempfile.TemporaryFile() as file:
        names = DiskNames(file)
        names.extend(given[:4])
        assert names[2] == given[2]
        names.extend(given[4:])  # reading moved the file position, but names are still appended at the end
        assert [names[index] for index in reversed(range(len(names)))] == given[::-1]
        for index in (-1, len(given)):
            with pytest.raises(IndexError):
                names[index]
