import hashlib
import io
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.helpers.read_images import read_images

from vcc_infuse.data.images.decode import run
from vcc_infuse.data.sources.folder import decode_size, load_folder
from vcc_infuse.errors import UserError


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VCC_INFUSE_CACHE", str(tmp_path / "cache"))


def picture(value=0, size=(4, 4), mode="RGB"):
    return Image.new(mode, size, value if mode != "RGB" else (value, value // 2, 255 - value))


def save(path, image=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    (image or picture()).save(path)
    return path


def make(root, parts=("train/cat", "train/dog", "test/cat", "test/dog"), n=3, suffix="png", **options):
    for p, part in enumerate(parts):
        for i in range(n):
            save(root / part / f"{i}.{suffix}", picture(10 * p + i, **options))
    return root


def zipped(root, target, prefix="", sep="/"):
    with zipfile.ZipFile(target, "w") as archive:
        for path in sorted(root.rglob("*")):
            if path.is_file():
                archive.writestr(sep.join((prefix + path.relative_to(root).as_posix()).split("/")), path.read_bytes())
    return target


# Layouts


@pytest.mark.parametrize("kind", ["folder", "zip", "wrapped zip", "backslash zip"])
def test_train_and_test(tmp_path, kind):
    root = make(tmp_path / "pets")
    if kind != "folder":
        prefix = "inner/" if kind == "wrapped zip" else ""
        root = zipped(root, tmp_path / "pets.zip", prefix, "\\" if "back" in kind else "/")
    data = load_folder(root)
    assert data.name == "pets"
    assert data.classes == ("cat", "dog")
    assert data.shape == (4, 4, 3)
    assert data.train.y.tolist() == data.test.y.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.train.x[:, 0, 0, 0].tolist() == [0, 1, 2, 10, 11, 12]
    assert data.test.x[:, 0, 0, 0].tolist() == [20, 21, 22, 30, 31, 32]
    assert Path(data.train.names[4].replace("\\", "/")).parts[-2:] == ("dog", "1.png")
    assert not data.fixed
    pixels = np.concatenate([data.train.x[..., c].ravel() for c in range(3)]).reshape(3, -1) / 255
    np.testing.assert_allclose(data.mean, pixels.mean(1), rtol=1e-12)
    np.testing.assert_allclose(data.std, pixels.std(1), rtol=1e-12)


@pytest.mark.parametrize("words", [("labeled", "unlabeled"), ("labelled", "unlabelled"), ("Labeled", "Unlabeled")])
def test_labeled_unlabeled_test(tmp_path, words):
    make(tmp_path / "d", [f"{words[0]}/a", f"{words[0]}/b", "test/a", "test/b"], n=2)
    save(tmp_path / "d" / words[1] / "x.png", picture(100))
    save(tmp_path / "d" / words[1] / "deep" / "er" / "y.png", picture(101))
    data = load_folder(tmp_path / "d")
    assert data.fixed
    assert data.train.y.tolist() == [0, 0, 1, 1, -1, -1]
    assert sorted(data.train.x[4:, 0, 0, 0].tolist()) == [100, 101]


@pytest.mark.parametrize("base", ["labeled", "train"])
def test_no_test_folder_is_needed(tmp_path, base):
    data = load_folder(make(tmp_path / "d", [f"{base}/a", f"{base}/b", "unlabeled"], n=2))
    assert data.test is None
    assert data.train.y.tolist() == [0, 0, 1, 1, -1, -1]
    assert data.fixed == (base == "labeled")
    again = load_folder(tmp_path / "d")
    assert again.test is None, "from the cache"


def test_an_empty_test_folder_is_named(tmp_path):
    root = make(tmp_path / "d", ["labeled/a", "labeled/b", "unlabeled"])
    (root / "test" / "a").mkdir(parents=True)
    with pytest.raises(UserError, match="test/ holds no images; fill it or remove it"):
        load_folder(root)


def test_train_with_unlabeled_images_does_not_fix_the_labels(tmp_path):
    make(tmp_path / "d", ["train/a", "train/b", "test/a", "test/b", "unlabeled"], n=2)
    data = load_folder(tmp_path / "d")
    assert data.train.y.tolist() == [0, 0, 1, 1, -1, -1]
    assert not data.fixed


def test_class_folders_alone_give_a_fixed_fifth_to_the_test_set(tmp_path):
    data = load_folder(make(tmp_path / "d", ["a", "b"], n=10))
    assert np.bincount(data.test.y).tolist() == [2, 2]
    assert len(data.train) == 16
    assert not set(data.train.names) & set(data.test.names)
    assert load_folder(make(tmp_path / "e", ["a", "b"], n=10)).test.names == data.test.names


def test_other_files_are_ignored(tmp_path):
    root = make(tmp_path / "d")
    for name in ("train/cat/.a.png", "__MACOSX/train/cat/0.png", "train/cat/Thumbs.db", ".git/x/y.png", "README.md"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"junk")
    data = load_folder(root)
    assert len(data.train) == 6
    assert data.skipped == ()


def test_linked_folders_are_followed_but_not_in_circles(tmp_path):
    make(tmp_path / "real", ["cat"])
    root = make(tmp_path / "d", ["train/dog", "test/dog"])
    os.symlink(tmp_path / "real" / "cat", root / "train" / "cat")
    os.symlink(root, root / "train" / "cat" / "loop")
    assert load_folder(root).classes == ("cat", "dog")


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (["train/cat", "train/dog", "test/cat", "test/dgo"], "test/dgo has no counterpart in train/; did you mean dog"),
        (
            ["train/cat", "train/dog", "test/cat", "test/x"],
            "test/x has no counterpart in train/; the classes are cat, dog",
        ),
        (["unlabeled", "test/a"], "labeled/ is missing"),
        (["unlabeled"], "labeled/ is missing.*give the labels of these images as a table: label_file"),
        (["test/cat", "test/dog"], "train/ is missing"),
        (["labeled/a", "labeled/b", "test/a"], "unlabeled/ is missing"),
        (["labeled/a", "train/a", "test/a"], "keep one of them"),
        (["train", "test/a"], "is in no class folder; move it into one, or give a table as label_file"),
        (["train/cat", "test/cat"], "only 1 class"),
        ([], "no images found"),
    ],
)
def test_invalid_layouts(tmp_path, parts, message):
    (tmp_path / "d").mkdir()
    with pytest.raises(UserError, match=message) as caught:
        load_folder(make(tmp_path / "d", parts))
    assert "\n" not in str(caught.value)


def test_an_empty_class_is_named(tmp_path):
    root = make(tmp_path / "d")
    (root / "train" / "emu").mkdir()
    with pytest.raises(UserError, match="'emu' holds no images"):
        load_folder(root)


# Sizes and modes


def test_mixed_sizes_ask_for_a_size(tmp_path):
    root = make(tmp_path / "d")
    save(root / "train/cat/wide.png", picture(size=(8, 6)))
    with pytest.raises(
        UserError, match=r"size must be set, because .*: 4×4 \(12 files\), 8×6 \(1 files\), got None; 160 or 224"
    ):
        load_folder(root)
    assert load_folder(root, size=5).shape == (5, 5, 3)


def test_size_takes_the_center_after_scaling_the_short_side(tmp_path):
    values = np.random.RandomState(0).randint(0, 256, (40, 60, 3), np.uint8)
    save(tmp_path / "a.png", Image.fromarray(values))
    got = read_images(tmp_path / "a.png", size=20)[0][0]
    expected = Image.fromarray(values).resize((30, 20), Image.Resampling.BILINEAR).crop((5, 0, 25, 20))
    assert np.abs(got.astype(int) - np.asarray(expected)).max() <= 1
    tall = read_images(tmp_path / "a.png", size=(40, 10))[0]
    assert tall.shape == (1, 40, 10, 3)
    assert np.array_equal(tall[0], values[:, 25:35])


def test_images_that_are_not_square_keep_their_shape(tmp_path):
    assert load_folder(make(tmp_path / "d", size=(6, 4))).shape == (4, 6, 3)


def test_gray_only_if_all_are_gray(tmp_path):
    root = make(tmp_path / "d", mode="L")
    assert load_folder(root).shape == (4, 4, 1)
    assert load_folder(root, mode="rgb").shape == (4, 4, 3)
    save(root / "test/cat/color.png", picture(9))
    assert load_folder(root).shape == (4, 4, 3)
    assert load_folder(root, mode="gray").shape == (4, 4, 1)


GRAY, RED = 128, (255, 0, 0)
KINDS = {
    "1.png": (Image.new("1", (4, 4), 1), (255,)),
    "l.png": (Image.new("L", (4, 4), GRAY), (GRAY,)),
    "la.png": (Image.new("LA", (4, 4), (0, 0)), (255,)),
    "i16.png": (Image.fromarray(np.full((4, 4), GRAY * 257, np.uint16)), (GRAY,)),
    "i16.tif": (Image.fromarray(np.full((4, 4), GRAY * 257, np.uint16)), (GRAY,)),
    "f.tif": (Image.fromarray(np.full((4, 4), GRAY / 255, np.float32)), (GRAY,)),
    "p.png": (Image.new("RGB", (4, 4), RED).quantize(4), RED),
    "p.gif": (Image.new("RGB", (4, 4), RED).quantize(4), RED),
    "rgba.png": (Image.new("RGBA", (4, 4), (0, 0, 255, 0)), (255, 255, 255)),
    "rgba.webp": (Image.new("RGBA", (16, 16), (255, 0, 0, 255)), RED),
    "cmyk.jpg": (Image.new("CMYK", (16, 16), (0, 255, 255, 0)), RED),
    "rgb.bmp": (Image.new("RGB", (4, 4), RED), RED),
    "rgb.ppm": (Image.new("RGB", (4, 4), RED), RED),
    "l.pgm": (Image.new("L", (4, 4), GRAY), (GRAY,)),
    "rgb.JPEG": (Image.new("RGB", (16, 16), RED), RED),
}


@pytest.mark.parametrize("name", KINDS)
def test_every_image_format(tmp_path, name):
    image, expected = KINDS[name]
    lossy = 2 if name.endswith((".jpg", ".JPEG", ".webp")) else 0
    x, names, skipped = read_images(save(tmp_path / name, image))
    assert names == [name]
    assert skipped == []
    assert x.dtype == np.uint8
    assert x.shape == (1, *image.size[::-1], len(expected))
    assert np.abs(x.reshape(-1, len(expected)).astype(int) - expected).max() <= lossy


def test_a_transparent_palette_color_becomes_white(tmp_path):
    Image.new("RGB", (4, 4), RED).quantize(4).save(tmp_path / "a.png", transparency=0)
    assert (read_images(tmp_path / "a.png")[0] == 255).all()


def test_a_rotated_photograph_is_put_upright(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate by 90° clockwise to view
    values = np.zeros((16, 32, 3), np.uint8)
    values[:, :16] = 255
    Image.fromarray(values).save(tmp_path / "a.jpg", exif=exif, quality=95)
    x = read_images(tmp_path / "a.jpg")[0][0]
    assert x.shape == (32, 16, 3)
    assert x[:14].min() > 240
    assert x[18:].max() < 15


def test_the_first_frame_of_an_animation_is_read(tmp_path):
    frames = [picture(v) for v in (10, 200)]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    assert abs(int(read_images(tmp_path / "a.gif")[0][0, 0, 0, 0]) - 10) <= 1


def test_large_images_are_decoded_by_threads_to_the_same_pixels(tmp_path):
    rng = np.random.RandomState(0)
    values = rng.randint(0, 256, (20, 160, 160, 3), np.uint8)
    for i, v in enumerate(values):
        save(tmp_path / "d" / f"{i:02}.png", Image.fromarray(v))
    archive = zipped(tmp_path / "d", tmp_path / "d.zip")
    assert np.array_equal(read_images(archive)[0], values)


def test_results_keep_their_order_for_any_number_of_threads():
    for threads in (1, 3):
        assert run(lambda i: i * i, 1000, "", False, threads) == [i * i for i in range(1000)]


# Damage


def test_unreadable_images_are_skipped_and_listed(tmp_path):
    root = make(tmp_path / "d", n=5, size=(32, 32))
    (root / "train/cat/0.png").write_bytes(b"not a picture")
    (root / "train/dog/2.png").write_bytes((root / "train/dog/2.png").read_bytes()[:60])
    (root / "test/dog/1.png").write_bytes(b"")
    for _ in range(2):  # built, then from the cache
        data = load_folder(root)
        assert [name for name, _ in data.skipped] == ["test/dog/1.png", "train/cat/0.png", "train/dog/2.png"]
        assert all(reason and "\n" not in reason for _, reason in data.skipped)
        assert data.train.x[:, 0, 0, 0].tolist() == [1, 2, 3, 4, 10, 11, 13, 14]
        assert data.train.y.tolist() == [0] * 4 + [1] * 4
        assert "train/dog/2.png" not in data.train.names


def test_a_wrong_checksum_in_a_zip_makes_an_image_unreadable(tmp_path):
    archive = zipped(make(tmp_path / "d", mode="L"), tmp_path / "d.zip")
    raw = archive.read_bytes()
    at = raw.index(b"IDAT") + 6
    archive.write_bytes(raw[:at] + bytes([raw[at] ^ 255]) + raw[at + 1 :])
    data = load_folder(archive)
    assert len(data.skipped) == 1
    assert len(data.train) + len(data.test) == 11


def test_losing_a_whole_class_is_an_error(tmp_path):
    root = make(tmp_path / "d")
    for path in (root / "train/dog").iterdir():
        path.write_bytes(b"x")
    with pytest.raises(UserError, match=r"no 'dog' image \(train\)"):
        load_folder(root)


def test_losing_most_images_is_an_error(tmp_path):
    root = make(tmp_path / "d")
    for path in list(root.rglob("[01].png")):
        path.write_bytes(b"x")
    with pytest.raises(UserError, match="8 of 12 images cannot be read"):
        load_folder(root)


def test_damaged_zips_and_unknown_files(tmp_path):
    archive = zipped(make(tmp_path / "d"), tmp_path / "d.zip")
    archive.write_bytes(archive.read_bytes()[:-40])
    with pytest.raises(UserError, match="damaged zip"):
        load_folder(archive)
    (tmp_path / "d.tar").write_bytes(b"x" * 600)
    with pytest.raises(UserError, match="neither a folder, a zip"):
        load_folder(tmp_path / "d.tar")


def test_a_zip_with_a_password_is_refused(tmp_path):
    archive = zipped(make(tmp_path / "d"), tmp_path / "d.zip")
    raw = bytearray(archive.read_bytes())
    at = raw.rindex(b"PK\x01\x02")
    raw[at + 8] |= 1  # the flag of the last entry
    archive.write_bytes(raw)
    with pytest.raises(UserError, match="password"):
        load_folder(archive)


@pytest.mark.parametrize("name", ["flower.zip", "flower.png", "flower"])
def test_a_mistyped_path_gets_a_suggestion(tmp_path, name):
    (tmp_path / "flowers.zip").write_bytes(b"")
    with pytest.raises(UserError, match=r"no such file or folder; did you mean .*flowers\.zip"):
        read_images(tmp_path / name)


# Cache


def test_the_second_load_maps_the_cache_and_a_change_is_noticed(tmp_path, monkeypatch):
    root = make(tmp_path / "d")
    first = load_folder(root)
    opened = []
    monkeypatch.setattr(Image, "open", lambda *a, **k: opened.append(a) or pytest.fail("decoded again"))
    second = load_folder(root)
    assert isinstance(second.train.x, np.memmap)
    assert np.array_equal(first.train.x, second.train.x)
    assert (first.mean, first.std, first.classes) == (second.mean, second.std, second.classes)
    monkeypatch.undo()
    monkeypatch.setenv("VCC_INFUSE_CACHE", str(tmp_path / "cache"))
    save(root / "train/cat/0.png", picture(77))
    assert load_folder(root).train.x[0, 0, 0, 0] == 77


def test_the_cache_key_of_a_zip_is_its_content_not_its_name(tmp_path):
    root = make(tmp_path / "d")
    load_folder(zipped(root, tmp_path / "one.zip"))
    assert load_folder(zipped(root, tmp_path / "two.zip")).name == "two"
    assert len(list((tmp_path / "cache").iterdir())) == 1


# Prediction


def test_a_flat_folder_zip_or_file_for_prediction(tmp_path):
    root = make(tmp_path / "d", ["", "deep"], n=2)
    (root / "bad.png").write_bytes(b"x")
    expected = ["0.png", "1.png", "bad.png", "deep/0.png", "deep/1.png"]
    for path in (root, zipped(root, tmp_path / "d.zip")):
        x, names, skipped = read_images(path, size=4, mode="gray")
        assert x.shape == (4, 4, 4, 1)
        assert names == [n for n in expected if n != "bad.png"]
        assert skipped == [("bad.png", "not an image file")]
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no images found"):
        read_images(tmp_path / "empty")


def test_zips_with_folder_entries_and_non_ascii_names(tmp_path):
    buffer = io.BytesIO()
    picture(5).save(buffer, "png")
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x/", "")
        archive.writestr("x/ä ö.PNG", buffer.getvalue())
    x, names, _ = read_images(tmp_path / "a.zip")
    assert names == ["x/ä ö.PNG"]
    assert x[0, 0, 0, 0] == 5


# What a cache holds already


def bmp_zip(path):
    """Images whose bytes do not depend on the version of a library."""
    with zipfile.ZipFile(path, "w") as archive:
        for part in ("labeled/a", "labeled/b", "unlabeled", "test/a", "test/b"):
            for i in range(3):
                file = io.BytesIO()
                Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3) + i * 7 + len(part)).save(file, "BMP")
                archive.writestr(zipfile.ZipInfo(f"{part}/{i}.bmp"), file.getvalue())
    return path


@pytest.mark.parametrize(
    ("options", "key", "pixels"),
    [
        ({}, "b3665fa637c55b3bbc64eddc4e5032b3", "19becbf2746dbb24"),
        ({"size": 6}, "930336f5733c12496bb00536cc200d3f", "9a483d4decb309d3"),
        ({"size": 5, "mode": "gray"}, "8c41be34793f57388882d51d7f3b6b7c", "d48ac8ad384466e2"),
    ],
)
def test_plain_images_keep_their_key_and_their_pixels(tmp_path, options, key, pixels):
    """Recorded: what users have in their caches must be found again."""
    data = load_folder(bmp_zip(tmp_path / "a.zip"), cache=str(tmp_path / "own"), **options)
    assert [path.name for path in (tmp_path / "own").iterdir()] == [key]
    assert hashlib.sha256(data.train.x.tobytes() + data.test.x.tobytes()).hexdigest()[:16] == pixels


# The size for a network


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([(4, 4), (4, 4)], None),  # smaller than the network's 8 pixels: it resizes them itself
        ([(8, 8), (8, 8)], None),
        ([(9, 8), (9, 8)], 8),
        ([(30, 20), (30, 20)], 8),
        ([(30, 5), (30, 5)], None),  # one side is smaller
        ([(4, 4), (5, 4)], 8),  # which differ
        ([(30, 20), (20, 30)], 8),
    ],
)
@pytest.mark.parametrize("kind", ["folder", "zip"])
def test_the_size_for_a_network(tmp_path, sizes, expected, kind):
    root = tmp_path / "pets"
    for number, (name, size) in enumerate(zip(("cat", "dog"), sizes, strict=True)):
        save(root / "train" / name / "0.png", picture(number, size))
    (root / "train" / "cat" / "broken.png").write_bytes(b"")
    path = root if kind == "folder" else zipped(root, tmp_path / "pets.zip")
    assert decode_size(path, 8) == expected


def test_headers_are_read_once_for_the_size(tmp_path, monkeypatch):
    root = make(tmp_path / "pets", size=(20, 20))
    assert decode_size(root, 8) == 8
    with monkeypatch.context() as patch:
        patch.setattr("vcc_infuse.data.sources.folder.read_headers", lambda *args: pytest.fail("read again"))
        assert decode_size(root, 8) == 8
        assert decode_size(root, 20) is None
    save(root / "train" / "cat" / "other.png", picture(0, (21, 20)))
    assert decode_size(root, 20) == 20, "the folder has changed"


def test_a_photo_turned_by_its_camera_has_another_size(tmp_path):
    root = make(tmp_path / "pets", size=(20, 16), suffix="jpg")
    assert decode_size(root, 24) is None
    exif = Image.Exif()
    exif[0x0112] = 6
    (root / "train" / "cat" / "0.jpg").unlink()
    picture(0, (20, 16)).save(root / "train" / "cat" / "0.jpg", exif=exif)
    assert decode_size(root, 24) == 24
