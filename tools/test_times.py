"""The slowest tests, by the CPU time of the test and of the processes it started.

    OMP_NUM_THREADS=1 python -m pytest -p tools.test_times

lists them in results/tests.md. A fixture that several tests share counts for the first of them.
"""

from __future__ import annotations

import resource
from collections.abc import Generator
from pathlib import Path

import pytest

OUT = Path(__file__).parents[1] / "results" / "tests.md"
HEADING = "## The slowest tests"
SHOWN = 50
seconds: dict[str, float] = {}


def cpu_seconds() -> float:
    """CPU time of this process and of its children that have ended."""
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(part.ru_utime + part.ru_stime for part in usage)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Measure a test with its fixtures."""
    began = cpu_seconds()
    result = yield
    seconds[item.nodeid] = cpu_seconds() - began
    return result


def pytest_sessionfinish() -> None:
    """Replace the list on the page."""
    rows = sorted(seconds.items(), key=lambda row: -row[1])
    top = sum(spent for _, spent in rows[:SHOWN])
    lines = [
        HEADING,
        "",
        f"{len(rows)} tests, {cpu_seconds() / 60:.1f} CPU minutes; the {SHOWN} slowest take {top / 60:.1f}.",
        "",
        "    OMP_NUM_THREADS=1 python -m pytest -p tools.test_times",
        "",
        "| CPU seconds | test |",
        "|---:|---|",
        *(f"| {spent:.1f} | `{name}` |" for name, spent in rows[:SHOWN]),
    ]
    above = OUT.read_text(encoding="utf-8").partition(HEADING)[0] if OUT.exists() else ""
    OUT.write_text(above + "\n".join(lines) + "\n", encoding="utf-8")
