"""The page as text: what is in it, and that no name from outside becomes markup."""

import html
import json
from html.parser import HTMLParser

import numpy as np
import pytest
from jinja2 import UndefinedError

from tests.helpers.folders import NASTY, make_run
from vcc_infuse.report import write_report
from vcc_infuse.report.page import environment, render


class Reader(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.text = [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.text.append(data)


def read(folders, path):
    reader = Reader()
    reader.feed(write_report(folders, path).read_text(encoding="utf-8"))
    return reader


def test_the_page_stands_alone(folder, tmp_path):
    page = read([folder], tmp_path / "page.html")
    links = [value for _, attributes in page.tags for name, value in attributes.items() if name in ("src", "href")]
    assert links
    assert all(link.startswith("data:image/") for link in links)
    assert (tmp_path / "page.html").stat().st_size < 2.5e6


def test_every_chart_and_image_has_words(folder, tmp_path):
    page = read([folder], tmp_path / "page.html")
    figures = [a for tag, a in page.tags if tag == "figure" and "data-chart" in a]
    assert len(figures) == 18
    assert all(a["role"] == "img" and len(a["aria-label"]) > 30 for a in figures)
    images = [a["alt"] for tag, a in page.tags if tag == "img"]
    assert len(images) == 12
    assert "Most helpful, number 1: a.png: pseudo label 0, true class 0, +0.9" in images


@pytest.mark.parametrize("names", [["<u>one"], ["<u>one", "<u>two"]], ids=len)
@pytest.mark.parametrize("finished", [True, False])
def test_names_from_outside_are_text(tmp_path, names, finished):
    runs = [make_run(tmp_path / name, classes=NASTY, finished=finished) for name in names]
    page = read(runs, tmp_path / "page.html")
    tags = [tag for tag, _ in page.tags]
    assert tags.count("script") == 3
    assert "u" not in tags
    assert not [a for _, a in page.tags if any(name.startswith("on") for name in a)]
    assert set(names) <= set(page.text)
    assert any("<i>config</i>" in text for text in page.text)
    alts = " ".join(a["alt"] for tag, a in page.tags if tag == "img")
    assert "<script>alert(3)</script>.png" in alts


def test_json_cannot_leave_its_script():
    value = {"</script>": ["<!--", "&", "'", "\u2028", None]}
    text = environment().from_string("{{ value|tojson }}").render(value=value)
    assert not set("<>&'") & set(text)
    assert json.loads(text) == value


def test_the_data_of_the_page_hold_the_names_as_they_are(tmp_path):
    page = read([make_run(tmp_path / "run", classes=NASTY)], tmp_path / "page.html")
    data = next(text for text in page.text if text.startswith('{"charts"'))
    assert not set("<>&") & set(data)
    shown = [chart["layout"]["xaxis"].get("ticktext") for chart in json.loads(data)["charts"]]
    short = [name if len(name) <= 14 else f"{name[:7]}…{name[-6:]}" for name in NASTY]
    assert [html.escape(name, quote=False) for name in short] in shown


def test_a_name_in_template_syntax_is_only_a_name(tmp_path):
    name = "$title {{ runs }} {% raw %} {# #}"
    page = read([make_run(tmp_path / name, classes=["$x", "{{ 7 * 7 }}"])], tmp_path / "page.html")
    assert name in page.text
    assert any("{{ 7 * 7 }}" in a.get("aria-label", "") for _, a in page.tags)


def test_every_template_escapes_and_knows_its_values():
    assert environment().autoescape is True
    with pytest.raises(UndefinedError, match="'script' is undefined"):
        render("page.html", colors=[], title="", heading="", style="")


@pytest.mark.parametrize("extras", [True, False])
def test_older_folders_say_what_is_missing(tmp_path, extras):
    text = " ".join(read([make_run(tmp_path / "run", extras=extras)], tmp_path / "p.html").text)
    assert ("No predictions were kept" in text) is not extras
    assert ("No images were kept" in text) is not extras
    assert ("Thresholds per class" in text) is extras


def test_no_core_set_without_a_selector(tmp_path):
    text = read([make_run(tmp_path / "run", selector=False)], tmp_path / "p.html").text
    assert "Core set" not in text
    assert "Core set" in read([make_run(tmp_path / "other")], tmp_path / "p.html").text


def test_an_unfinished_run_says_so(tmp_path):
    text = read([make_run(tmp_path / "run", finished=False)], tmp_path / "p.html").text
    assert "run is unfinished: metrics up to step 40." in text
    text = read([make_run(tmp_path / "new", finished=False, evaluations=0, extras=False)], tmp_path / "p.html").text
    assert "new is unfinished: no evaluation yet." in text
    assert "No evaluation was recorded yet." in text


def add_to_summary(folder, **metrics):
    path = folder / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | metrics))
    return folder


@pytest.mark.parametrize(("probe", "warned"), [(0.1, True), (0.3, False), (0.9, False), (None, False)])
def test_a_run_that_ends_above_its_probe_says_so(tmp_path, probe, warned):
    folder = add_to_summary(make_run(tmp_path / "run"), error=0.3, error_probe=probe)
    text = " ".join(read([folder], tmp_path / "p.html").text)
    assert ("This run ends above its linear probe: error 30.00 %, probe 10.00 %; try more labels" in text) is warned


@pytest.mark.parametrize("names", [["one"], ["one", "two"]], ids=len)
def test_the_error_is_the_last_one_not_the_best_on_the_test_set(tmp_path, names):
    folders = [add_to_summary(make_run(tmp_path / n), error=0.3, error_best=0.1234, evaluated_images=50) for n in names]
    page = read(folders, tmp_path / "p.html")
    assert "30.00 %" in page.text
    assert not any("12.34" in text for text in page.text)
    assert ("at the end, on 50 images" in page.text) is (len(names) == 1)


def test_class_names_in_the_gallery_are_whole(tmp_path):
    name = "a long name of a class that nobody would want to see cut"
    page = read([make_run(tmp_path / "run", classes=[name, "b"])], tmp_path / "p.html")
    assert page.text.count(name) >= 3
    titles = [attributes.get("title", "") for tag, attributes in page.tags if tag == "figure"]
    assert any(f"pseudo label {name}, true class {name}" in title for title in titles)


@pytest.mark.parametrize("names", [["one"], ["one", "two"]], ids=len)
def test_the_images_behind_a_cell_of_the_confusion(tmp_path, names):
    folders = [make_run(tmp_path / name, classes=["cat", "dog"]) for name in names]
    page = read(folders, tmp_path / "p.html")
    places = [attributes["id"] for tag, attributes in page.tags if attributes.get("class") == "cell"]
    assert places == [f"cell-{run}-{place}" for run in range(len(names)) for place in ("0-1", "0-0", "1-1")]
    assert "cat predicted as dog " in page.text
    with np.load(folders[0] / "predictions.npz") as answers:
        both = int(((answers["truth"] == 0) & (answers["predicted"] == 1)).sum())
    assert f"1 of {both}, the most confident first" in page.text


def test_a_comparison_marks_the_best(tmp_path):
    folders = [make_run(tmp_path / name, evaluations=n) for name, n in (("short", 2), ("long", 5))]
    page = read(folders, tmp_path / "p.html")
    cells = page.text
    assert "0.020 ★" in cells  # ECE calibrated, 0.1 / 5
    assert "0.050" in cells
    assert not any("★" in text and "9.0 s" in text for text in cells), "equal values: none is best"


def class_cells(page):
    """The cells of the table of classes, row by row, as text."""
    start = page.text.index("Classes")
    return [text.strip() for text in page.text[start:] if text.strip()]


def test_the_worst_class_comes_first_with_its_labels(folder, tmp_path):
    rows = json.loads((folder / "summary.json").read_text())["per_class"]
    worst = max(rows, key=lambda row: row["error"])
    cells = class_cells(read([folder], tmp_path / "page.html"))
    header = cells.index("mostly taken for")
    assert cells[1] == "label more of <i>it</i>"
    assert cells[header - 5 : header] == ["class", "labels", "share of pseudo labels", "error", "test images"]
    assert cells[header + 1 : header + 3] == [worst["class"], str(worst["labels"])]
    assert cells[header + 4] == f"{100 * worst['error']:.1f} %"


def test_without_a_test_set_the_table_has_labels_only(folder, tmp_path):
    rows = [{"class": "cat", "labels": 15, "pseudo_label_share": 0.9}, {"class": "owl", "labels": 2}]
    (folder / "predictions.npz").unlink()
    cells = class_cells(read([add_to_summary(folder, per_class=rows, advice=[])], tmp_path / "page.html"))
    last = cells.index("share of pseudo labels")
    assert cells[last + 1 : last + 7] == ["owl", "2", "–", "cat", "15", "90.0 %"]
    assert "Without a test set the errors are not known." in cells[1]


def test_a_method_without_steps_has_no_curves(tmp_path):
    folder = make_run(tmp_path / "run")
    assert "Error and losses" in read([folder], tmp_path / "before.html").text
    add_to_summary(folder, steps=0)
    page = read([folder], tmp_path / "after.html").text
    assert "Error and losses" not in page
    assert "Training time" not in page
