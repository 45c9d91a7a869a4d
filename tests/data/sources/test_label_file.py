"""Labels in a table: every format gives the same dataset, and every mistake costs one line."""

import csv
import io
import json
import zipfile

import numpy as np
import pytest
from PIL import Image

from vcc_infuse import load_ssl
from vcc_infuse.data.ssl_data import load
from vcc_infuse.errors import OptionError, UserError

LABELS = {"a/1.png": "cat", "a/2.png": "dog", "b/x.png": "cat", "b/y.png": "dog", "b/3.png": "cat", "z.png": "dog"}
UNLABELED = ["a/u.png", "c/v.png"]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VCC_INFUSE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def photos(tmp_path):
    """Every image has a gray value of its own, by which it is found again."""
    for value, name in enumerate([*LABELS, *UNLABELED]):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 4), 10 * value).save(path)
    return tmp_path / "photos"


def as_csv(rows, columns=("file", "label"), separator=","):
    out = io.StringIO()
    csv.writer(out, delimiter=separator).writerows([columns, *rows])
    return out.getvalue()


def labels_by_name(dataset):
    """What the dataset says of each image."""
    return {
        name: dataset.classes[label] if label >= 0 else None
        for name, label in zip(dataset.train.names, dataset.train.y, strict=True)
    }


def label_studio(items):
    return [
        {"data": {"text": "a photo", "image": f"/data/upload/7/0a1b2c3d-{file.rpartition('/')[2]}"},
         "annotations": [{"was_cancelled": True, "result": [{"value": {"choices": ["emu"]}}]},
                         {"result": [{"from_name": "c", "type": "choices", "value": {"choices": [label]}}]}]}
        for file, label in items
    ]  # fmt: skip


def coco(items):
    classes = sorted({label for _, label in items})
    return {
        "images": [{"id": 100 + i, "file_name": file} for i, (file, _) in enumerate(items)],
        "annotations": [
            {"image_id": 100 + i, "category_id": classes.index(label) + 1} for i, (_, label) in enumerate(items)
        ],
        "categories": [{"id": i + 1, "name": name} for i, name in enumerate(classes)],
    }


ITEMS = list(LABELS.items())
FORMATS = {
    "labels.csv": as_csv(ITEMS),
    "bare.csv": as_csv([(file.rpartition("/")[2], label) for file, label in ITEMS]),
    "longer.csv": as_csv([(f"/home/me/photos/{file}", label) for file, label in ITEMS]),
    "windows.csv": "\ufeff" + as_csv([(file.replace("/", "\\"), label) for file, label in ITEMS], separator=";"),
    "labels.tsv": as_csv(ITEMS, ("Filename", "Class"), "\t"),
    "labels.jsonl": "\n".join(json.dumps({"file": file, "label": label}) for file, label in ITEMS),
    "list.json": json.dumps([{"image": f"s3://bucket/{file}", "choice": label, "id": 3} for file, label in ITEMS]),
    "local.json": json.dumps([{"image": f"/data/local-files/?d=photos/{f}", "choice": label} for f, label in ITEMS]),
    "studio.json": json.dumps(label_studio(ITEMS)),
    "coco.json": json.dumps(coco(ITEMS)),
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_says_the_same(photos, tmp_path, name):
    (tmp_path / name).write_text(FORMATS[name], encoding="utf-8")
    dataset = load(str(photos), label_file=str(tmp_path / name))
    assert labels_by_name(dataset) == LABELS | dict.fromkeys(UNLABELED)
    assert (dataset.classes, dataset.fixed, dataset.skipped, dataset.test) == (("cat", "dog"), True, (), None)
    value = {name: 10 * i for i, name in enumerate([*LABELS, *UNLABELED])}
    assert dataset.train.x[:, 0, 0, 0].tolist() == [value[name] for name in dataset.train.names]


def test_pixels_do_not_depend_on_the_labels(photos, tmp_path):
    """A bank is found by its images, so that one more label must not move them."""
    (tmp_path / "few.csv").write_text(as_csv(ITEMS[:2]))
    (tmp_path / "many.csv").write_text(as_csv(ITEMS))
    few, many = (load(str(photos), label_file=str(tmp_path / f"{name}.csv")) for name in ("few", "many"))
    assert np.array_equal(few.train.x, many.train.x)
    assert few.train.names == many.train.names
    assert (few.train.y >= 0).sum() == 2


def test_a_changed_table_is_read_again(photos, tmp_path):
    table = tmp_path / "labels.csv"
    table.write_text(as_csv(ITEMS))
    assert load(str(photos), label_file=str(table)).classes == ("cat", "dog")
    table.write_text(as_csv([(file, label.upper()) for file, label in ITEMS]))
    assert load(str(photos), label_file=str(table)).classes == ("CAT", "DOG")


def test_a_zip_may_hold_its_table(photos, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with zipfile.ZipFile("photos.zip", "w") as archive:
        archive.writestr("export/labels.csv", FORMATS["labels.csv"])
        for file in [*LABELS, *UNLABELED]:
            archive.write(photos / file, f"export/{file}")
    dataset = load("photos.zip", label_file="export/labels.csv")
    assert {n.removeprefix("export/"): c for n, c in labels_by_name(dataset).items()} == LABELS | dict.fromkeys(
        UNLABELED
    )


def test_a_split_column(photos, tmp_path):
    splits = ["train", "", "Test", "test", "unlabeled", "train"]
    (tmp_path / "l.csv").write_text(
        as_csv([(*item, split) for item, split in zip(ITEMS, splits, strict=True)], ("file", "label", "split"))
    )
    dataset = load(str(photos), label_file=str(tmp_path / "l.csv"))
    assert dataset.test.names == ("b/x.png", "b/y.png")
    assert [dataset.classes[c] for c in dataset.test.y] == ["cat", "dog"]
    assert labels_by_name(dataset)["b/3.png"] is None
    assert dataset.evaluated_on == "test"


def test_a_validation_split_is_measured_on_and_not_trained_on(photos, tmp_path):
    splits = ["train", "train", "val", "validation", "train", "train"]
    (tmp_path / "l.csv").write_text(
        as_csv([(*item, split) for item, split in zip(ITEMS, splits, strict=True)], ("file", "label", "split"))
    )
    data = load_ssl(str(photos), label_file=str(tmp_path / "l.csv"))
    assert data.dataset.evaluated_on == "validation"
    assert sorted(data.dataset.test.names) == ["b/x.png", "b/y.png"]
    trained = {data.dataset.train.names[row] for row in [*data.split.labeled, *data.split.pool]}
    assert trained == {*LABELS, *UNLABELED} - {"b/x.png", "b/y.png"}


def test_beside_a_test_split_validation_images_are_left_out(photos, tmp_path):
    splits = ["train", "train", "val", "test", "train", "train"]
    (tmp_path / "l.csv").write_text(
        as_csv([(*item, split) for item, split in zip(ITEMS, splits, strict=True)], ("file", "label", "split"))
    )
    data = load_ssl(str(photos), label_file=str(tmp_path / "l.csv"))
    assert data.dataset.evaluated_on == "test"
    assert "b/x.png" not in [*data.dataset.train.names, *data.dataset.test.names]


def test_missing_files_are_listed(photos, tmp_path):
    (tmp_path / "l.csv").write_text(as_csv([*ITEMS, ("gone.png", "cat"), ("c/gone.png", "dog")]))
    dataset = load(str(photos), label_file=str(tmp_path / "l.csv"))
    reason = f"named in l.csv, but not in {photos}"
    assert dataset.skipped == (("gone.png", reason), ("c/gone.png", reason))


def test_numbers_are_classes_in_their_order(photos, tmp_path):
    rows = [(file, value) for file, value in zip(LABELS, (10, 9, 2, 10, 9, 2), strict=True)]
    (tmp_path / "l.csv").write_text(as_csv(rows))
    assert load(str(photos), label_file=str(tmp_path / "l.csv")).classes == ("2", "9", "10")


def test_the_same_row_twice_is_no_mistake(photos, tmp_path):
    (tmp_path / "l.csv").write_text(as_csv([*ITEMS, ITEMS[0]]))
    assert labels_by_name(load(str(photos), label_file=str(tmp_path / "l.csv")))["a/1.png"] == "cat"


TEST_EMU = as_csv([*((*item, "train") for item in ITEMS), ("a/u.png", "dgo", "test")], ("file", "label", "split"))
MISTAKES = {
    "empty.csv": ("", "holds no rows"),
    "header.csv": ("file,label\n", "holds no rows"),
    "columns.csv": ("a,b\n1,2\n", "columns are a, b; they must be file, label and maybe split"),
    "nameless.csv": (as_csv([*ITEMS, ("", "cat")]), "row 7: no file is named"),
    "twice.csv": (as_csv([*ITEMS, ("a/1.png", "dog")]), r"1 files have more than one label, first a/1.png \(cat, dog"),
    "one.csv": (as_csv([(file, "cat") for file in LABELS]), "only 1 class found"),
    "nothing.csv": (as_csv([(file, "") for file in LABELS]), "only 0 class found"),
    "gone.csv": (
        as_csv([(f"no{i}.png", "cat") for i in range(9)]),
        r"9 files \(no0.png, no1.png, .* and 6 more\)",
    ),
    "lost.csv": (as_csv([*ITEMS, ("gone.png", "emu")]), "no file with the label 'emu' is in"),
    "split.csv": (as_csv([(*ITEMS[0], "dev2")], ("file", "label", "split")), "split is 'dev2'; it must be train"),
    "test.csv": (TEST_EMU, "the label 'dgo' is only in the splits test and validation; did you mean dog"),
    "bad.json": ("{", "cannot be read"),
    "other.json": ('{"a": 1}', "is not a label file of a known format"),
    "text.json": ('["a", "b"]', "is not a label file of a known format"),
    "nested.jsonl": ('{"file": "z.png", "label": ["a"]}', "is not a label file of a known format"),
    "quotes.csv": ('file,label\n"a,b', "cannot be read"),
    "many.json": (json.dumps(coco([*ITEMS, ("z.png", "cat")])), "more than one label"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_cost_one_line(photos, tmp_path, name):
    text, message = MISTAKES[name]
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=message) as caught:
        load(str(photos), label_file=str(tmp_path / name))
    assert "\n" not in str(caught.value)


def test_binary_tables_are_refused(photos, tmp_path):
    (tmp_path / "l.csv").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(UserError, match="cannot be read .*UTF-8"):
        load(str(photos), label_file=str(tmp_path / "l.csv"))


def test_a_name_that_fits_two_files_asks_for_the_path(photos, tmp_path):
    Image.new("L", (4, 4)).save(photos / "c" / "1.png")
    (tmp_path / "l.csv").write_text(FORMATS["bare.csv"])
    with pytest.raises(UserError, match="1.png may be a/1.png, c/1.png in .*; write the path instead of the name"):
        load(str(photos), label_file=str(tmp_path / "l.csv"))


def test_a_wrong_path_or_a_named_source_is_refused(photos):
    with pytest.raises(OptionError, match="label_file must be a CSV or JSON file with labels, got 'nowhere.csv'"):
        load(str(photos), label_file="nowhere.csv")
    with pytest.raises(OptionError, match="label_file must be left out, because digits has labels of its own"):
        load("digits", label_file="labels.csv")
