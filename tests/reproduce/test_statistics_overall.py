"""Differences over all columns, recomputed by hand."""

from vcc_infuse.reproduce.collect import Entry
from vcc_infuse.reproduce.statistics import HEAD, overall, paired
from vcc_infuse.reproduce.table import Column, Row

BASE, OURS = Row("FixMatch", {}), Row("ours", {}, "FixMatch")
COLUMNS = [Column(name, {}) for name in "abc"]


def entry(row: Row, column: Column, errors: dict[int, float], base: dict[int, float]) -> Entry:
    return Entry(row, column, {}, {}, paired(errors, base) if row.base else None, None, 0.0, errors, {})


def entries(columns: list[Column]) -> list[Entry]:
    base = {0: 10.0, 1: 12.0, 2: 14.0}
    ours = [{0: 9.0, 1: 12.0}, {0: 10.5, 1: 12.5, 2: 14.5}, {2: 11.0}]
    found = []
    for column, errors in zip(columns, ours, strict=False):
        found += [entry(BASE, column, base, {}), entry(OURS, column, errors, base)]
    return found


def test_every_column_weighs_the_same_and_every_run_is_counted() -> None:
    # means −0.5, +0.5, −3; runs: better 9 and 11, equal 12, worse all three of the second column
    assert overall(entries(COLUMNS)) == [HEAD, ["ours", "FixMatch", "3", "-1.00", "2", "1", "3"]]


def test_nothing_is_said_of_few_columns() -> None:
    assert overall(entries(COLUMNS[:2])) == []
