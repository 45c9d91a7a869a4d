"""The labeling page in a real browser, on the real server: keys, grid, lost connections, undo, HTML in names."""

import json
import shutil
import time

import pytest

from tests.label.fakes import COLORS, draw
from tests.label.serving import Serving

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
playwright = pytest.importorskip("playwright.sync_api", reason="the dev extra has playwright")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine: apt-get install chromium")


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return draw(tmp_path_factory.mktemp("pool") / "photos", count=120)


@pytest.fixture
def serving(photos, tmp_path, request):
    """The server; `@prepared(n)` gives it three classes, n labels and a model."""
    server = Serving(photos, tmp_path / "labels")
    server.start()
    if hasattr(request, "param"):
        server.prepare(request.param)
    yield server
    server.stop()


def prepared(count):
    return pytest.mark.parametrize("serving", [count], indirect=True)


@pytest.fixture
def page(browser, serving):
    """The page, opened by its address. It must end without an error of its own."""
    context = browser.new_context(viewport={"width": 900, "height": 600}, reduced_motion="reduce")
    page = context.new_page()
    page.faults = []
    page.on("pageerror", lambda fault: page.faults.append(str(fault)))
    page.on("console", lambda line: page.faults.append(line.text) if "Content Security" in line.text else None)
    page.on("dialog", lambda dialog: leave(page, dialog))
    page.opened = time.monotonic()
    page.goto(serving.address)
    ready(page)
    yield page
    assert page.faults == []
    context.close()


def leave(page, dialog):
    """The only dialog allowed is the browser's own question whether to leave a page with unsent clicks."""
    if dialog.type != "beforeunload":
        page.faults.append(dialog.message)
    dialog.accept()


def ready(page):
    page.wait_for_selector("html[data-ready]", state="attached")


def until(page, script, *, seconds=15.0):
    """Wait for a condition. Playwright's own way needs eval, which the page's security policy forbids."""
    end = time.monotonic() + seconds
    while not page.evaluate(script):
        assert time.monotonic() < end, f"never true: {script}"
        page.wait_for_timeout(20)


def saved(page):
    until(page, "document.documentElement.dataset.waiting === '0'")


SHOWN = "document.querySelector('#frame:not(.loading) img')?.alt.split(' ').at(-1)"


def image_on(page):
    """Wait for an image that can be answered; its number."""
    until(page, SHOWN)
    return int(page.evaluate(SHOWN))


def counted(page):
    return int(page.locator("#facts b").first.text_content())


def label(page, serving, count):
    """Label the next images as they are, by their keys; what was answered."""
    done = {}
    for _ in range(count):
        image = image_on(page)
        done[image] = serving.truth(image)
        page.keyboard.press(str(1 + list(COLORS).index(done[image])))
    return done


def test_fifty_labels_by_keys_only(page, serving):
    expected = {}
    keys = {}
    accepted = 0
    while len(expected) < 50:
        image = image_on(page)
        name = serving.truth(image)
        guess = page.evaluate("document.querySelector('.guess')?.textContent")
        if name not in keys:
            if keys:
                page.keyboard.press("n")
            page.keyboard.type(name)
            keys[name] = str(len(keys) + 1)
            page.keyboard.press("Enter")
        elif guess == name:
            page.keyboard.press("Enter")
            accepted += 1
        else:
            page.keyboard.press(keys[name])
        expected[image] = name
        if len(expected) in (12, 30):
            saved(page)
            serving.background.learn()
    saved(page)
    assert serving.labels() == expected
    assert counted(page) == 50
    assert accepted > 5
    elapsed = time.monotonic() - page.opened
    assert 0 < serving.session.state.seconds <= elapsed + 0.1  # each of fifty times is rounded
    labels = serving.journal("label")
    assert [line["suggested"] for line in labels if line["audit"]] == [None] * sum(line["audit"] for line in labels)
    assert len({line["client"] for line in serving.journal()}) == len(serving.journal())


@prepared(24)
def test_an_audit_image_has_no_suggestion_and_says_so(page, serving):
    for _ in range(20):
        image = image_on(page)
        if page.evaluate("document.querySelector('#one-view.audit') !== null"):
            break
        assert page.locator(".guess").count() == 1
        label(page, serving, 1)
    assert "Audit image" in page.locator("#frame").inner_text()
    assert "without a suggestion" in page.locator("#answer").inner_text()
    assert page.locator("#answer button").count() == 0
    page.keyboard.press("Enter")
    assert image_on(page) == image
    label(page, serving, 1)
    saved(page)
    assert serving.journal("label")[-1] | {"audit": True, "suggested": None} == serving.journal("label")[-1]


@prepared(24)
def test_grid_with_corrections(page, serving):
    page.keyboard.press("Shift+G")
    until(page, "document.querySelectorAll('.tile').length > 6")
    name = page.evaluate("document.getElementById('grid-class').selectedOptions[0].textContent").rsplit(" (", 1)[0]
    other = next(color for color in COLORS if color != name)
    tiles = page.evaluate("[...document.querySelectorAll('.tile')].map((tile) => Number(tile.dataset.id))")
    assert len(tiles) <= 60
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Space")
    page.keyboard.press("ArrowRight")
    page.keyboard.press(str(1 + list(COLORS).index(other)))
    assert f"Confirm {len(tiles) - 2} as {name}" in page.locator("#grid-confirm").inner_text()
    page.keyboard.press("Enter")
    saved(page)
    [line] = serving.journal("grid")
    assert [tile["id"] for tile in line["tiles"]] == serving.names(tiles)
    wrong = {tile["id"]: tile["class"] for tile in line["tiles"] if not tile["right"]}
    assert wrong == dict(zip(serving.names(tiles[:2]), [None, serving.class_id(other)], strict=True))
    assert serving.labels()[tiles[1]] == other
    bound = serving.session.grids.show(serving.class_id(name), 1, "teach")["bound"]
    words = f"At most {100 * bound['at_most']:.1f} % of these {bound['labels']} labels are wrong (95 %)"
    until(page, f"document.getElementById('grid-bound').textContent.startsWith({words!r})")
    page.keyboard.press("u")
    saved(page)
    assert set(tiles).isdisjoint(serving.labels())


@prepared(6)
def test_nothing_is_lost_when_the_server_dies(page, serving):
    before = serving.labels()
    image_on(page)
    serving.stop()
    offline = label(page, serving, 3)
    until(page, "!document.getElementById('banner').hidden")
    assert "3 clicks are kept here" in page.locator("#banner").inner_text()
    assert counted(page) == len(before) + 3
    serving.start()
    saved(page)
    assert serving.labels() == before | offline
    until(page, "document.getElementById('banner').hidden")
    page.reload()
    ready(page)
    assert counted(page) == len(before) + 3


@prepared(6)
def test_clicks_that_were_not_sent_survive_a_reload(page, serving):
    before = serving.labels()
    page.route("**/api/act", lambda route: route.abort())
    image_on(page)
    page.keyboard.press("n")
    page.keyboard.type("later")
    page.keyboard.press("Enter")
    done = label(page, serving, 2)
    page.unroute("**/api/act")
    page.reload()
    ready(page)
    saved(page)
    assert len(serving.labels()) == len(before) + 3
    assert before | done == {image: name for image, name in serving.labels().items() if name != "later"}


@prepared(6)
def test_undo_and_redo_also_beyond_a_reload(page, serving):
    before = serving.labels()
    first = image_on(page)
    page.keyboard.press("1")
    second = image_on(page)
    page.keyboard.press("s")
    page.keyboard.press("Control+z")
    assert image_on(page) == second
    page.keyboard.press("u")
    assert image_on(page) == first
    saved(page)
    assert serving.labels() == before
    page.keyboard.press("Shift+U")
    assert image_on(page) == second
    saved(page)
    assert set(serving.labels()) == set(before) | {first}
    page.reload()
    ready(page)
    page.keyboard.press("u")
    saved(page)
    assert serving.labels() == before
    until(page, f"{SHOWN} === '{first}'")


@prepared(6)
def test_a_slow_network_does_not_slow_the_hand(page, serving):
    before = serving.labels()
    held = []
    page.route("**/api/act", lambda route: held.append(route))
    done = label(page, serving, 6)
    assert counted(page) == len(before) + 6
    assert serving.labels() == before
    # The server does the first click, but its answer breaks off: the same click comes again, and counts once.
    click = json.loads(held[0].request.post_data)["client"]
    held[0].fetch()
    held[0].fulfill(content_type="application/json", body='{"ok": tr')
    page.unroute("**/api/act")
    saved(page)
    assert serving.labels() == before | done
    assert [line["client"] for line in serving.journal()].count(click) == 1
    assert len(serving.journal("label")) == len(before) + 6


@prepared(6)
def test_a_refused_click_is_said(page, serving):
    before = serving.labels()
    refusal = {"status": 409, "content_type": "application/json", "body": json.dumps({"error": "no <b>room</b>"})}
    page.route("**/api/act", lambda route: route.fulfill(**refusal))
    label(page, serving, 1)
    until(page, "!document.getElementById('toast').hidden")
    assert page.locator("#toast").inner_text() == "Not saved: no <b>room</b>"
    assert counted(page) == len(before)


def test_html_in_a_class_name_stays_text(page, serving):
    evil = "<img src=x onerror=alert(1)>"
    requests = []
    page.on("request", lambda request: requests.append(request.url))
    image_on(page)
    page.keyboard.type(evil)
    page.keyboard.press("Enter")
    saved(page)
    assert page.locator(".class-name").text_content() == evil
    assert page.locator("#pad .chip span").text_content() == evil
    page.locator("#classes button").click()
    page.locator("#class-name").fill("<b>bold</b>")
    page.keyboard.press("Enter")
    saved(page)
    assert page.locator(".class-name").text_content() == "<b>bold</b>"
    for mode in "GCI":
        page.keyboard.press(f"Shift+{mode}")
    image_on(page)
    assert page.locator("span b, option b, li img, .chip img").count() == 0
    assert not [url for url in requests if url.endswith("/x")]


PLACES = """[...document.querySelectorAll('#frame, #answer, #name, .chip, .facts div, #classes li, #model, button')]
  .map((node) => node.getBoundingClientRect()).map(({ x, y, width, height }) => [x, y, width, height])"""

WATCH = """window.redrawn = 0;
for (const id of ['frame', 'answer', 'pad'])
  new MutationObserver(() => { window.redrawn += 1; })
    .observe(document.getElementById(id), { childList: true, subtree: true })"""


@prepared(24)
def test_news_of_the_model_move_nothing(page, serving):
    image = image_on(page)
    places = page.evaluate(PLACES)
    answer = page.locator("#answer").inner_html()
    page.evaluate(WATCH)
    waiting = [number for number in range(120) if number not in serving.labels() and number != image]
    for number in waiting[-20:]:
        serving.label(number)
    serving.background.learn()
    taught = 44 - int(serving.session.state.audit.sum())
    until(page, f"document.getElementById('model').textContent.startsWith('Model of {taught} labels')")
    assert image_on(page) == image
    assert page.locator("#answer").inner_html() == answer
    assert page.evaluate(PLACES) == places
    assert page.evaluate("window.redrawn") == 0


NAMELESS = """[...document.querySelectorAll('button, select, input')].filter((node) =>
  !(node.textContent.trim() || node.ariaLabel || node.labels?.length)).map((node) => node.outerHTML)"""
SEEN = "document.getElementById('tiles').scrollHeight <= document.getElementById('tiles').clientHeight"
FITS = "document.documentElement.scrollWidth <= innerWidth && document.documentElement.scrollHeight <= innerHeight"


@prepared(24)
def test_fits_every_screen_and_every_control_has_a_name(page, serving):
    for width, height in ((360, 740), (1280, 800), (3840, 2160)):
        page.set_viewport_size({"width": width, "height": height})
        for mode in "IGC":
            page.keyboard.press(f"Shift+{mode}")
            assert page.evaluate(FITS), (width, mode)
            assert page.evaluate(NAMELESS) == []
    page.keyboard.press("Shift+G")
    page.locator("[data-purpose=confirm]").click()
    until(page, "document.querySelectorAll('.tile').length > 20")
    page.set_viewport_size({"width": 360, "height": 740})
    for _ in range(2):
        until(page, "document.querySelectorAll('.tile:not(.done)').length >= 4")
        until(page, SEEN, seconds=5)
        page.keyboard.press("Enter")
        saved(page)
    page.keyboard.press("?")
    assert page.locator("#help-dialog").is_visible()
    page.keyboard.press("Escape")
    assert page.locator("#help-dialog").is_hidden()


@prepared(24)
def test_two_classes_are_merged_and_parted_again(page, serving):
    before = serving.labels()
    page.get_by_label("Edit class green").click()
    page.locator("#merge-into").select_option(label="red")
    page.locator("#merge-form button").click()
    saved(page)
    until(page, "document.querySelectorAll('#classes li').length === 2")
    assert page.locator(".class-name").all_text_contents() == ["red", "blue"]
    merged = {image: "red" if name == "green" else name for image, name in before.items()}
    assert serving.labels() == merged
    assert counted(page) == len(before)
    page.keyboard.press("u")
    saved(page)
    until(page, "document.querySelectorAll('#classes li').length === 3")
    assert serving.labels() == before


@prepared(6)
def test_two_browsers_agree(page, serving, browser):
    """Both show what either has done, an image that both answer has the newer answer, and undo is shared."""
    before = serving.labels()
    context = browser.new_context(viewport={"width": 900, "height": 600}, reduced_motion="reduce")
    other = context.new_page()
    other.goto(serving.address.split("?")[0] + f"?token={serving.server.keys.token}")
    ready(other)
    same = image_on(page)
    assert image_on(other) == same
    page.keyboard.press("1")
    saved(page)
    other.keyboard.press("2")
    saved(other)
    done = label(other, serving, 3)
    saved(other)
    assert serving.labels() == before | done | {same: list(COLORS)[1]}
    total = len(serving.labels())
    until(page, f"document.querySelector('#facts b').textContent === '{total}'")
    page.keyboard.press("u")
    saved(page)
    until(other, f"document.querySelector('#facts b').textContent === '{total - 1}'")
    context.close()


@prepared(24)
def test_export_from_the_page(page, serving):
    page.locator("#export-button").click()
    page.locator("[data-format=csv]").click()
    until(page, "document.getElementById('export-answer').textContent === 'Written: labels.csv, audit.csv'")
    rows = (serving.out / "labels.csv").read_text().splitlines()[1:]
    assert sum(",person," in row for row in rows) == len(serving.labels())
    page.route("**/api/export", lambda route: route.fulfill(status=400, json={"error": "no <b>room</b>"}))
    page.locator("[data-format=run]").click()
    until(page, "document.getElementById('export-answer').textContent === 'Not written: no <b>room</b>'")
    assert page.locator("[data-format=run]").is_enabled()
    answer = {"files": ["run/report.html"], "note": "of plain views"}
    page.unroute("**/api/export")
    page.route("**/api/export", lambda route: route.fulfill(json=answer))
    page.locator("[data-format=run]").click()
    until(
        page,
        "document.getElementById('export-answer').textContent === 'Written: run/report.html (of plain views)'",
    )


@pytest.mark.slow
def test_twenty_thousand_photos_stay_small_in_the_browser(browser, tmp_path):
    """Tiles in the page and the memory of its scripts do not grow with the folder, or with what was looked at."""
    serving = Serving(draw(tmp_path / "photos", count=20_000), tmp_path / "labels")
    serving.start()
    try:
        serving.prepare(24)
        page = browser.new_page(viewport={"width": 3840, "height": 2160})
        page.goto(serving.address)
        ready(page)
        tools = page.context.new_cdp_session(page)
        tools.send("Performance.enable")
        label(page, serving, 20)
        page.keyboard.press("Shift+G")
        for _ in range(10):
            until(page, "document.querySelectorAll('.tile:not(.done)').length > 10", seconds=60)
            assert page.locator(".tile").count() <= 200
            page.keyboard.press("Enter")
            saved(page)
        figures = {item["name"]: item["value"] for item in tools.send("Performance.getMetrics")["metrics"]}
        assert 0 < figures["JSHeapUsedSize"] < 200e6
        assert figures["Nodes"] < 20_000
        page.close()
    finally:
        serving.stop()
