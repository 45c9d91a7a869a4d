"""The labeling page in a real browser, against the real server: keys, grid, lost connections, undo, names that are HTML."""

import json
import shutil
import time

import pytest

from tests.label.serving import SHAPES, Serving, draw_photos

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
    return draw_photos(tmp_path_factory.mktemp("pool") / "photos", count=120)


@pytest.fixture
def serving(photos, tmp_path):
    server = Serving(photos, tmp_path / "labels")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def page(browser, serving):
    """The page of a fresh session. It must end without an error of its own."""
    context = browser.new_context(viewport={"width": 1100, "height": 720}, reduced_motion="reduce")
    page = context.new_page()
    page.faults = []
    page.on("pageerror", lambda fault: page.faults.append(str(fault)))
    page.on("console", lambda line: page.faults.append(line.text) if "Content Security" in line.text else None)
    page.on("dialog", lambda dialog: leave(page, dialog))
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


def until(page, script, *, seconds=10.0):
    """Wait for a condition. Playwright's own way needs eval, which the page's security policy forbids."""
    end = time.monotonic() + seconds
    while not page.evaluate(script):
        assert time.monotonic() < end, f"never true: {script}"
        page.wait_for_timeout(15)


def saved(page):
    until(page, "document.documentElement.dataset.waiting === '0'")


def image_on(page):
    """Wait for an image that can be answered; its id."""
    until(page, "document.querySelector('#frame img')?.complete && !document.querySelector('#frame.loading')")
    return int(page.evaluate("document.querySelector('#frame img').alt").split()[-1])


def name_classes(page, serving):
    """The first classes, typed: one of each shape. The ids that were labeled so."""
    done = {}
    while len(set(done.values())) < len(SHAPES):
        image = image_on(page)
        shape = serving.truth[image]
        if shape in done.values():
            page.keyboard.press(key_of(page, shape))
        else:
            if done:
                page.keyboard.press("n")
            page.keyboard.type(shape)
            page.keyboard.press("Enter")
        done[image] = shape
    saved(page)
    return done


def key_of(page, name):
    rows = page.evaluate("[...document.querySelectorAll('#classes li')].map((row) => [row.children[1].textContent, row.children[0].textContent])")
    return dict(rows)[name].lower()


def label(page, serving, count):
    """Label the next images as they are, by their keys; what was answered."""
    done = {}
    for _ in range(count):
        image = image_on(page)
        done[image] = serving.truth[image]
        page.keyboard.press(key_of(page, done[image]))
    return done


def test_fifty_labels_by_keys_only(page, serving):
    started = time.monotonic()
    expected = name_classes(page, serving)
    accepted = 0
    while len(expected) < 50:
        image = image_on(page)
        shape = serving.truth[image]
        guess = page.locator(".guess")
        if guess.count() and guess.text_content() == shape:
            page.keyboard.press("Enter")
            accepted += 1
        else:
            page.keyboard.press(key_of(page, shape))
        expected[image] = shape
    saved(page)
    assert serving.labels() == expected
    assert page.locator("#facts b").first.text_content() == "50"
    assert accepted > 5
    assert 0 < serving.state()["minutes"] * 60 <= time.monotonic() - started
    assert {entry["image"] for entry in serving.journal("label") if entry["audit"]}
    assert len({entry["client"] for entry in serving.journal()}) == len(serving.journal())


def test_an_audit_image_has_no_suggestion_and_says_so(page, serving):
    name_classes(page, serving)
    label(page, serving, 12)
    for _ in range(20):
        image = image_on(page)
        if page.locator("#one-view.audit").count():
            break
        page.keyboard.press(key_of(page, serving.truth[image]))
    assert "Audit image" in page.locator("#frame").inner_text()
    assert "without a suggestion" in page.locator("#answer").inner_text()
    assert page.locator("#answer button").count() == 0
    before = image_on(page)
    page.keyboard.press("Enter")
    assert image_on(page) == before


def test_grid_with_corrections(page, serving):
    name_classes(page, serving)
    label(page, serving, 20)
    saved(page)
    until(page, "/^Model/.test(document.getElementById('model').textContent)", seconds=30)
    page.keyboard.press("Shift+G")
    until(page, "document.querySelectorAll('.tile').length > 6")
    assert page.locator(".tile").count() <= 60
    name = page.evaluate("document.getElementById('grid-class').selectedOptions[0].textContent").rsplit(" (", 1)[0]
    other = next(shape for shape in SHAPES if shape != name)
    tiles = page.evaluate("[...document.querySelectorAll('.tile')].map((tile) => Number(tile.dataset.id))")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Space")
    page.keyboard.press("ArrowRight")
    page.keyboard.press(key_of(page, other))
    assert f"Confirm {len(tiles) - 2} as {name}" in page.locator("#grid-confirm").inner_text()
    page.keyboard.press("Enter")
    saved(page)
    [entry] = serving.journal("grid")
    wrong = {tile["id"]: tile["class"] for tile in entry["tiles"] if not tile["right"]}
    assert wrong == {tiles[0]: None, tiles[1]: serving.class_id(other)}
    assert [tile["id"] for tile in entry["tiles"]] == tiles
    assert serving.labels()[tiles[1]] == other
    until(page, r"/^At most [\d.]+ % of these [\d,]+ labels are wrong \(95 %\)$/.test(document.querySelector('.two small').textContent)")
    page.keyboard.press("u")
    saved(page)
    assert tiles[1] not in serving.labels()


def test_nothing_is_lost_when_the_server_dies(page, serving):
    name_classes(page, serving)
    saved(page)
    before = serving.labels()
    image_on(page)
    serving.stop()
    offline = label(page, serving, 3)
    until(page, "!document.getElementById('banner').hidden")
    assert "3 clicks are kept here" in page.locator("#banner").inner_text()
    assert page.locator("#facts b").first.text_content() == str(len(before) + 3)
    serving.start()
    page.goto(serving.address)
    ready(page)
    saved(page)
    assert serving.labels() == before | offline
    page.reload()
    ready(page)
    assert page.locator("#facts b").first.text_content() == str(len(before) + 3)
    assert page.locator("#banner").is_hidden()


def test_undo_and_redo_also_beyond_a_reload(page, serving):
    name_classes(page, serving)
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


def test_a_slow_network_does_not_slow_the_hand(page, serving):
    name_classes(page, serving)
    before = serving.labels()
    held = []
    page.route("**/api/act", lambda route: held.append(route))
    done = label(page, serving, 6)
    assert page.locator("#facts b").first.text_content() == str(len(before) + 6)
    assert serving.labels() == before
    # The server does the first click, but its answer is lost: the same click comes again, and counts once.
    body = json.loads(held[0].request.post_data)
    held[0].fetch()
    held[0].abort()
    page.unroute("**/api/act")
    saved(page)
    assert serving.labels() == before | done
    assert [entry["client"] for entry in serving.journal("label")].count(body["client"]) == 1


def test_a_refused_click_is_said(page, serving):
    name_classes(page, serving)
    before = serving.labels()
    refuse = {"status": 409, "content_type": "application/json", "body": json.dumps({"error": "no room <b>left</b>"})}
    page.route("**/api/act", lambda route: route.fulfill(**refuse))
    label(page, serving, 1)
    until(page, "!document.getElementById('toast').hidden")
    assert page.locator("#toast").inner_text() == "Not saved: no room <b>left</b>"
    assert page.locator("#facts b").first.text_content() == str(len(before))


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
    page.keyboard.press("Shift+G")
    page.keyboard.press("Shift+C")
    page.keyboard.press("Shift+I")
    image_on(page)
    assert page.locator("b b, li img, .chip img").count() == 0
    assert not [url for url in requests if url.endswith("/x")]


PLACES = """[...document.querySelectorAll('#frame, #answer, #name, .chip, .facts div, #classes li, #model, #export-button, #skip-button')]
  .map((node) => [node.id, node.getBoundingClientRect().x, node.getBoundingClientRect().y, node.getBoundingClientRect().width])"""


def test_news_of_the_model_move_nothing(page, serving):
    name_classes(page, serving)
    label(page, serving, 15)
    saved(page)
    image = image_on(page)
    places = page.evaluate(PLACES)
    answer = page.locator("#answer").inner_html()
    learned = serving.state()["model"]["labels"]
    waiting = [number for number in serving.truth if number not in serving.labels() and number != image][-12:]
    for number in waiting:
        serving.session.act({"action": "label", "image": number, "class": serving.class_id(serving.truth[number])})
    until(page, f"Number(/of (\\d+) label/.exec(document.getElementById('model').textContent)?.[1] ?? 0) > {learned}")
    assert image_on(page) == image
    assert page.locator("#answer").inner_html() == answer
    assert [place[:3] for place in page.evaluate(PLACES)] == [place[:3] for place in places]


@pytest.mark.parametrize("size", [(360, 740), (1280, 800), (3840, 2160)])
def test_fits_every_screen_and_every_control_has_a_name(page, serving, size):
    page.set_viewport_size({"width": size[0], "height": size[1]})
    for mode in "IGC":
        page.keyboard.press("Escape")
        page.locator("#stage").focus()
        page.keyboard.press(f"Shift+{mode}")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth && document.documentElement.scrollHeight <= innerHeight")
    nameless = """[...document.querySelectorAll('button, select, input')].filter((node) => !(node.textContent.trim() || node.ariaLabel
      || node.labels?.length)).map((node) => node.outerHTML)"""
    assert page.evaluate(nameless) == []
