"""The page in a real browser: it draws, toggles, follows the color scheme, fits a phone and makes no request."""

import json
import shutil
from pathlib import Path

import pytest

from tests.helpers.folders import NASTY, make_run
from vcc_infuse.report import write_report

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
playwright = pytest.importorskip("playwright.sync_api", reason="the dev extra has playwright")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine: apt-get install chromium")


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield found
        found.close()


@pytest.fixture(scope="module")
def visit(browser):
    """Open a page, and record its errors and its requests."""
    opened = []

    def visit(path, **options):
        wide = {"width": 1200, "height": 900}
        # Without motion, or a slow machine still scrolls when the next place on the page is looked up.
        page = browser.new_page(**{"viewport": wide, "reduced_motion": "reduce", **options})
        page.errors, page.requests = [], []
        page.on("console", lambda message: page.errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda fault: page.errors.append(str(fault)))
        page.on("dialog", lambda dialog: page.errors.append(dialog.message) or dialog.dismiss())
        page.on("request", lambda request: page.requests.append(request.url))
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready]", state="attached", timeout=60_000)
        opened.append(page)
        return page

    yield visit
    for page in opened:
        page.close()


@pytest.fixture(scope="module")
def single(visit, tmp_path_factory):
    folder = tmp_path_factory.mktemp("single")
    return visit(write_report([make_run(folder / "run", classes=NASTY)], folder / "page.html"))


@pytest.fixture(scope="module")
def several(visit, tmp_path_factory):
    folder = tmp_path_factory.mktemp("several")
    runs = [make_run(folder / n, classes=[*"abcd"[: i + 2]], seed=i) for i, n in enumerate(("one", "two", "three"))]
    return visit(write_report(runs, folder / "page.html"))


@pytest.fixture(autouse=True)
def page(request):
    """The page of a test, which must end without an error and without a request for another file."""
    page = request.getfixturevalue(request.param if hasattr(request, "param") else "several")
    yield page
    assert page.errors == []
    assert [url for url in page.requests if not url.startswith(("data:", "blob:"))] == [page.url]


FACTS = {"evaluated_on": "validation", "evaluated_images": 6}
on_single = pytest.mark.parametrize("page", ["single"], indirect=True)


def until(page, script):
    """Wait for a condition. Playwright's own way needs eval, which the page's security policy forbids."""
    for _ in range(200):
        if page.evaluate(script):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"never true: {script}")


def visible(page, chart=0):
    """The runs whose traces a chart shows."""
    script = """n => document.querySelectorAll('.js-plotly-plot')[n]._fullData
        .filter(t => t.visible === true && t.meta).map(t => t.meta.run)"""
    return set(page.evaluate(script, chart))


@on_single
def test_every_chart_is_drawn(page):
    assert page.locator("[data-chart] .js-plotly-plot").count() == page.locator("[data-chart]").count() == 18
    sizes = page.evaluate("[...document.querySelectorAll('.main-svg')].map(s => s.getBoundingClientRect().width)")
    assert len(sizes) >= 17
    assert min(sizes) > 200


@on_single
def test_a_class_named_script_is_shown_as_text(page):
    ticks = page.locator("#pseudo [data-chart]").first.locator(".xtick text").all_text_contents()
    assert ticks == [name if len(name) <= 14 else f"{name[:7]}…{name[-6:]}" for name in NASTY]
    assert page.locator("main script, main img[onerror]").count() == 0
    titles = page.locator("#gallery figure").evaluate_all("all => all.map(f => f.title)")
    assert any("<script>alert(3)</script>.png" in title for title in titles)


@on_single
def test_hovering_shows_the_whole_class_name(page):
    page.locator("#thresholds").scroll_into_view_if_needed()
    page.locator("#thresholds .js-plotly-plot .bars .point path").nth(1).hover(force=True)
    page.wait_for_selector("#thresholds .hoverlayer text")
    assert any(NASTY[1] in text for text in page.locator("#thresholds .hoverlayer text").all_text_contents())


def at_rest(page, element):
    """Where an element is once the page has stopped scrolling, and no click can be the second of a double click."""
    while True:
        box = element.bounding_box()
        page.wait_for_timeout(500)
        if element.bounding_box() == box:
            return box


def test_a_click_on_a_cell_opens_its_images(page):
    matrix = page.locator("#confusion .js-plotly-plot").first
    matrix.scroll_into_view_if_needed()
    for place in ("0-1", "1-1"):
        row, column = map(int, place.split("-"))
        box = at_rest(page, matrix.locator(".nsewdrag").first)
        page.mouse.click(box["x"] + box["width"] * (column + 0.5) / 2, box["y"] + box["height"] * (row + 0.5) / 2)
        until(page, f"document.getElementById('cell-0-{place}').open")
        opened = page.locator(".cell[open]").evaluate_all("all => all.map(cell => cell.id)")
        assert opened == [f"cell-0-{place}"]
        assert page.locator(f"#cell-0-{place} img").first.is_visible()


@on_single
def test_dark_mode(page):
    def colors():
        return page.evaluate("""[getComputedStyle(document.body).backgroundColor,
            getComputedStyle(document.querySelector('.xtick text')).fill]""")

    light = colors()
    page.emulate_media(color_scheme="dark")
    until(page, f"getComputedStyle(document.querySelector('.xtick text')).fill !== '{light[1]}'")
    assert colors()[0] != light[0]
    page.emulate_media(color_scheme="light")
    until(page, f"getComputedStyle(document.querySelector('.xtick text')).fill === '{light[1]}'")


def test_toggling_a_run_hides_it_everywhere(page):
    drawn = page.locator(".js-plotly-plot").count()
    assert visible(page) == {0, 1, 2}
    page.locator(".toggles input").nth(1).uncheck()
    until(page, "document.querySelector('.js-plotly-plot')._fullData[1].visible === false")
    until(page, "[...document.querySelectorAll('.js-plotly-plot')].every(p => !p._transitioning)")
    assert all(1 not in visible(page, n) for n in range(drawn))
    assert visible(page) == {0, 2}
    assert not page.locator("tr[data-run='1']").is_visible()
    page.locator(".toggles input").nth(1).check()
    until(page, "document.querySelector('.js-plotly-plot')._fullData[1].visible === true")
    assert page.locator("tr[data-run='1']").is_visible()


def test_the_axis_switches_between_steps_and_time(page):
    ends = "document.querySelector('.js-plotly-plot')._fullData[0].x.at(-1)"
    assert page.evaluate(ends) == 40
    page.locator(".switch label").nth(1).click()
    until(page, f"{ends} === 6")
    assert "seconds" in page.locator("#curves .xtitle").first.text_content()
    page.locator(".switch label").nth(0).click()
    until(page, f"{ends} === 40")


def test_a_folded_run_is_drawn_when_opened(page):
    part = page.locator("#confusion details[data-run]").nth(1)
    assert part.locator(".main-svg").count() == 0
    part.locator("summary").first.click()
    part.locator(".main-svg").first.wait_for()
    svg = "document.querySelectorAll('#confusion details[data-run]')[1].querySelector('.main-svg')"
    until(page, f"{svg} && {svg}.getBoundingClientRect().width > 300")


@pytest.mark.parametrize("page", ["single", "several"], indirect=True)
def test_a_phone_needs_no_sideways_scrolling(page):
    page.set_viewport_size({"width": 360, "height": 780})
    edge = "Math.max(...[...document.querySelectorAll('.main-svg')].map(s => s.getBoundingClientRect().right))"
    until(page, f"{edge} <= 360")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    until(page, "document.querySelectorAll('.modebar-btn').length === 0")
    page.set_viewport_size({"width": 1200, "height": 900})
    until(page, f"{edge} > 360")
    until(page, "document.querySelectorAll('.modebar-btn').length > 0")


def test_long_words_of_a_run_without_test_set_fit_a_phone(visit, tmp_path, page):
    run = make_run(tmp_path / "run")
    for name in ("metrics.jsonl", "summary.json"):
        lines = [json.loads(line) for line in (run / name).read_text().splitlines()]
        kept = [{k: v for k, v in line.items() if "precision" not in k} | FACTS for line in lines]
        (run / name).write_text("".join(json.dumps(line) + "\n" for line in kept))
    phone = visit(write_report([run], tmp_path / "page.html"), viewport={"width": 360, "height": 780})
    assert "no hidden labels to check them" in phone.locator(".cards").text_content()
    assert phone.evaluate("document.documentElement.scrollWidth") <= 360
    edges = phone.locator(".cards div").evaluate_all("all => all.map(c => c.getBoundingClientRect().right)")
    assert max(edges) <= 360
    for width in (1200, 760, 360):
        phone.set_viewport_size({"width": width, "height": 780})
        cards = "[...document.querySelectorAll('.cards div')]"
        assert (
            phone.evaluate(f"{cards}.filter(card => card.scrollWidth > card.clientWidth).map(c => c.innerText)") == []
        )
    apart = """[...document.querySelectorAll('.js-plotly-plot')].filter(p => p.textContent.includes('calibrated, %'))
        .every(chart => {
            const [first, second] = ['.xtitle', '.x2title'].map(name => chart.querySelector(name));
            return first && second && first.getBoundingClientRect().right <= second.getBoundingClientRect().left;
        })"""
    until(phone, apart)  # titles side by side do not touch, once the chart is drawn at its new width


def test_a_page_opened_on_a_phone_fits(visit, page):
    path = page.url.removeprefix("file://")
    phone = visit(Path(path), viewport={"width": 360, "height": 780}, has_touch=True, is_mobile=True)
    assert phone.errors == []
    assert phone.evaluate("document.documentElement.scrollWidth") <= 360
    assert phone.locator(".modebar-btn").count() == 0, "the toolbar would cover the legends"
    assert phone.evaluate("document.querySelector('.js-plotly-plot')._fullLayout.dragmode") is False


STEP = "<img src=x onerror=alert(1)><script>alert(2)</script><a href='javascript:alert(3)'>4</a>"


def test_html_in_an_unfinished_run_is_text_and_runs_nothing(visit, page, tmp_path):
    run = make_run(tmp_path / STEP.replace("/", "-"), classes=["</script><script>alert(5)</script>", "a\u2028b"])
    (run / "summary.json").unlink()
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    lines[-1] |= {"step": STEP, "seconds": STEP, "evaluated_images": STEP, "evaluated_on": "validation"}
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (run / "config.yaml").write_text(STEP)
    attacked = visit(write_report([run], tmp_path / "page.html"))
    assert attacked.errors == []
    assert attacked.locator("main a, main img[src=x], header img").count() == 0
    assert attacked.locator("#configuration pre").text_content() == STEP


def test_the_policy_has_no_inline_exception_and_stops_a_foreign_script(browser, page, tmp_path):
    text = Path(page.url.removeprefix("file://")).read_text()
    policy = text.partition('http-equiv="Content-Security-Policy"')[2].partition(">")[0]
    assert "unsafe" not in policy
    path = tmp_path / "changed.html"
    path.write_text(text.replace("<body>", "<body onload='window.ran = 1'><script>window.ran = 2</script>"))
    other = browser.new_page()
    other.goto(path.as_uri())
    other.wait_for_selector("html[data-ready]", state="attached", timeout=60_000)
    assert other.evaluate("window.ran") is None
    other.close()


@on_single
def test_a_click_sorts_the_classes(page):
    def column(number):
        return page.evaluate(
            f"[...document.querySelectorAll('.classes tbody tr')].map(r => r.children[{number}].innerText)"
        )

    button = page.locator(".classes th button", has_text="labels").first
    button.click()
    assert [int(text) for text in column(1)] == sorted(range(10, 10 + len(NASTY)), reverse=True)
    button.click()
    assert [int(text) for text in column(1)] == list(range(10, 10 + len(NASTY)))
    page.locator(".classes th button", has_text="error").click()
    errors = [float(text.removesuffix(" %")) for text in column(3)]
    assert errors == sorted(errors, reverse=True)
    page.locator(".classes th button", has_text="class").first.click()
    assert sorted(column(0)) == sorted(NASTY)
