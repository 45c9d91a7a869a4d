"""The site has a page for every name and method, its links lead somewhere, and it needs no network."""

import importlib.util
import inspect
import re
import shutil
import subprocess
import sys
from contextlib import contextmanager
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import unquote

import pytest
import yaml

import vcc_infuse
from vcc_infuse.cli.registry import OURS

pytest.importorskip("mkdocs")
ROOT = Path(__file__).parents[2]


def load(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


site_pages = load("site_pages")


def menu():
    """The pages that mkdocs.yml names."""
    return re.findall(r": ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M)


def test_every_page_of_docs_is_in_the_menu_once():
    generated = {*site_pages.PAGES.values(), "index.md"}
    written = {path.name for path in (ROOT / "docs").glob("*.md")}
    assert written - set(menu()) == set()
    assert set(menu()) - written - generated == set()
    assert len(set(menu())) == len(menu())


def test_every_public_name_has_a_place_in_the_reference():
    text = "".join(site_pages.reference_page(room, names) for room, names in site_pages.rooms().items())
    listed = {line.rpartition(".")[2] for line in text.splitlines() if line.startswith("::: ")}
    assert set(vcc_infuse.__all__) - set(site_pages.MODULES) <= listed


def test_a_name_of_a_new_room_is_missed(monkeypatch):
    monkeypatch.delitem(site_pages.TITLES, "estimator")
    with pytest.raises(ValueError, match="SSLClassifier"):
        site_pages.rooms()


@pytest.mark.parametrize(("option", "kind"), site_pages.methods(), ids=lambda value: getattr(value, "__name__", value))
def test_a_method_has_a_page_with_its_rule_options_and_source(option, kind):
    page = site_pages.method_page(kind, option)
    assert page.startswith(f"# {kind.__name__}\n")
    assert inspect.getdoc(kind).splitlines()[0] in page
    parameters = inspect.signature(kind).parameters.values()
    for name in (p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)):
        assert f"`--{option}.{name}`" in page
    assert f"class {kind.__name__}(" in page


def test_every_method_has_a_page():
    assert {kind.__name__ for _, kind in site_pages.methods()} == set(OURS)


@pytest.mark.parametrize(("link", "home", "here", "result"), [
    ("[a](banks.md#x)", "docs/vcc.md", "vcc.md", "[a](banks.md#x)"),
    ("[a](../results/frozen/x.md)", "docs/vcc.md", "vcc.md", "a"),
    ("[a](../results/minutes.md)", "docs/vcc.md", "vcc.md", "[a](results/minutes.md)"),
    ("![a](../results/minutes.png)", "docs/vcc.md", "vcc.md", "![a](results/minutes.png)"),
    ("[a](docs/banks.md)", "README.md", "index.md", "[a](banks.md)"),
    ("[a](examples/own_loop.py)", "README.md", "index.md", "[a](examples/own_loop.md)"),
    ("[a](../docs/banks.md)", "results/README.md", "results/index.md", "[a](../banks.md)"),
    ("[a](../pyproject.toml)", "docs/vcc.md", "vcc.md", "a"),
])  # fmt: skip
def test_links_of_the_repository_become_links_of_the_site(link, home, here, result):
    assert site_pages.LINK.sub(lambda found: site_pages.led(found, home, here), link) == result


class Links(HTMLParser):
    """What a page refers to: links, and what a browser would load."""

    def __init__(self, text):
        super().__init__()
        self.links, self.loaded, self.ids = [], [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.ids |= {found["id"]} if "id" in found else set()
        if tag == "a" and found.get("href"):
            self.links.append(found["href"])
        if tag in ("img", "script", "iframe") and found.get("src"):
            self.loaded.append(found["src"])
        if tag == "link" and found.get("rel") in ("stylesheet", "preload", "preconnect", "icon"):
            self.loaded.append(found["href"])


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The site, built without a warning."""
    folder = tmp_path_factory.mktemp("site") / "html"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return folder


@pytest.mark.slow
def test_the_site_is_whole_and_needs_no_network(built):
    """Every link and anchor exists, nothing is loaded from elsewhere, every public name is rendered."""
    pages = {path: Links(path.read_text()) for path in built.rglob("*.html") if path.name != "404.html"}
    assert len(pages) > 100
    broken = []
    for path, page in pages.items():
        for link in (*page.links, *page.loaded):
            address, _, anchor = link.partition("#")
            if re.match(r"\w+:", address) and link in page.links:
                continue
            target = path if not address else (path.parent / unquote(address)).resolve()
            target = target / "index.html" if target.is_dir() else target
            ids = pages[target].ids if target in pages else set()
            if not target.is_file() or (anchor and target in pages and unquote(anchor) not in {*ids, "__top"}):
                broken.append(f"{path.relative_to(built)}: {link}")
    assert broken == []
    rendered = set().union(*(page.ids for path, page in pages.items() if path.parent.name == "reference"))
    names = {name.rpartition(".")[2] for name in rendered}
    assert set(vcc_infuse.__all__) - set(site_pages.MODULES) <= names


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@contextmanager
def served(folder):
    """The address of a server of this folder, on this machine only."""
    handler = partial(Quiet, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("chromium"), reason="needs Chromium")
def test_the_site_in_a_browser_without_a_network(built):
    """Search answers, no page is wider than a phone, nothing is asked of another server, no script fails."""
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright, served(built) as home:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 360, "height": 740})
        faults, asked = [], []
        page.on("pageerror", lambda fault: faults.append(str(fault)))
        page.on("request", lambda request: asked.append(request.url))
        wide = []
        for path in sorted(built.rglob("*.html")):
            page.goto(f"{home}/{path.relative_to(built)}", wait_until="domcontentloaded")
            if page.evaluate("document.documentElement.scrollWidth") > 360:
                wide.append(path.name)
        assert wide == []
        page.set_viewport_size({"width": 1200, "height": 800})
        page.goto(f"{home}/index.html")
        page.locator("input.md-search__input").fill("conformal")
        page.wait_for_selector(".md-search-result__link", timeout=20_000)
        found = page.locator(".md-search-result__link").evaluate_all("links => links.map(link => link.href)")
        assert any("promises.html" in link or "beyond.html" in link for link in found)
        browser.close()
    assert faults == []
    assert [url for url in asked if not url.startswith((home, "data:", "blob:"))] == []


def test_the_site_loads_no_fonts():
    text = (ROOT / "mkdocs.yml").read_text()
    assert yaml.safe_load(text)["theme"]["font"] is False
    assert "http" not in text
