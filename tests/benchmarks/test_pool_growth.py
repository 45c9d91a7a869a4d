"""The study of growth: what it calls linear, and a page and a plot of a small measurement."""

import json

import pytest
from PIL import Image

from benchmarks import pool_growth
from benchmarks.pool_growth import Figure, exponent
from vcc_infuse.errors import UserError


def test_the_exponent_tells_linear_from_quadratic_growth():
    def figures(power):
        return [Figure("x", rows, rows**power / 1e4, 0.0, "") for rows in (10**4, 10**5, 10**6)]

    assert exponent(figures(1)) == pytest.approx(1)
    assert exponent(figures(2)) == pytest.approx(2)
    assert exponent(figures(1)[:1]) is None
    cells = pool_growth.line("x", figures(2), [10**4, 10**6])
    assert cells[-2] == "**no**"
    assert pool_growth.line("x", figures(1), [10**4, 10**6])[-2] == "yes"


def test_what_is_measured_is_kept_and_not_measured_again(tmp_path, monkeypatch):
    measured = []

    def measure(name, rows):
        measured.append((name, rows))
        return Figure(name, rows, rows / 1e5, 8.0 * rows, "a remark")

    monkeypatch.setattr(pool_growth, "measure", measure)
    monkeypatch.setattr(pool_growth, "plot", lambda path, series: None)
    pool_growth.main(["--rows", "1000", "4000", "--parts", "report", "thumbnails", "--out", str(tmp_path)])
    pool_growth.main(["--rows", "1000", "--out", str(tmp_path)])
    assert len(measured) == len(set(measured)) == 2 + len(pool_growth.JOBS)
    assert "| report | 10 | 10 | 8 | 8 | 1.00 | yes | a remark |" in (tmp_path / "growth.md").read_text()
    assert len(json.loads((tmp_path / "growth.json").read_text())["figures"]) == len(measured)


@pytest.mark.slow
def test_the_plot(tmp_path):
    pool_growth.plot(tmp_path / "growth.png", [[Figure("x", rows, rows / 1e5, 0.0, "") for rows in (1000, 4000)]])
    assert Image.open(tmp_path / "growth.png").size > (400, 300)
    assert [path.name for path in tmp_path.iterdir()] == ["growth.png"]


def test_a_part_is_measured_in_a_process_of_its_own():
    figure = pool_growth.measure("find_unknown", 2000)
    assert figure.seconds > 0
    assert figure.bytes >= 0


def test_a_part_that_is_none_costs_one_line(tmp_path):
    with pytest.raises(UserError, match="--parts nothing is not measured here; choose among embedding queue"):
        pool_growth.main(["--parts", "nothing", "--out", str(tmp_path)])
