"""Small versions of the evidence in results/reliability."""

import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools" / "reliability"


@pytest.fixture
def tools(monkeypatch):
    monkeypatch.syspath_prepend(TOOLS)
    yield
    for name in ("arguments", "soak", "broken_images"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("tools")
def test_generated_words_files_and_folders_cost_no_traceback_and_stay_inside():
    import arguments

    found = arguments.run(60, number=3)
    assert found["cases"] >= 50
    assert found["exit_status"].get("2", 0) >= 20
    wrong = ("tracebacks", "hangs", "errors_not_one_line", "written_outside")
    assert {name: found[name] for name in wrong} == dict.fromkeys(wrong, 0), found["kinds"]


@pytest.mark.usefixtures("tools")
def test_growth_is_measured_after_the_warm_up():
    import soak

    assert soak.growth([10.0] * 20 + [100.0] * 80) == 0
    assert soak.growth([100.0] * 50 + [110.0] * 50) == pytest.approx(0.1)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.usefixtures("tools")
def test_a_soak_ends_with_samples():
    import soak

    found = soak.soak(40)
    assert len(found["megabytes"]) == 40
    assert found["megabytes"][0] > 50


@pytest.mark.usefixtures("tools")
def test_every_broken_image_is_listed_on_the_screen_and_in_the_report():
    import broken_images

    found = broken_images.run(300)
    assert (found["broken"], found["listed"], found["listed_but_whole"], found["exit_status"]) == (3, 3, 0, 0)
    assert found["on_the_screen"]
    assert found["in_the_report"]
