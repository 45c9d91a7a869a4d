"""16-bit and float images, other channels than gray and RGB, HEIC and AVIF, orientation, names in zips."""

import io
import struct
import zlib

import numpy as np
import pytest
import tifffile
from PIL import Image, ImageOps
from tests.helpers.read_images import read_images

from vcc_infuse import SSLData, load_ssl
from vcc_infuse.data.images import high_bit_depth as deep
from vcc_infuse.data.images.high_bit_depth import find_ranges, to_bytes
from vcc_infuse.data.images.store import open_store
from vcc_infuse.data.sources.arrays import from_arrays
from vcc_infuse.data.sources.folder import load_folder
from vcc_infuse.errors import OptionError, UserError

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VCC_INFUSE_CACHE", str(tmp_path / "cache"))


def png16(values):
    """A PNG with 16 bits per value, written by hand because Pillow writes only gray ones."""
    height, width, channels = values.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    head = struct.pack(">IIBBBBB", width, height, 16, {2: 4, 3: 2, 4: 6}[channels], 0, 0, 0)
    parts = [(b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    chunks = (struct.pack(">I", len(d)) + t + d + struct.pack(">I", zlib.crc32(t + d)) for t, d in parts)
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def write(path, values, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".png":
        path.write_bytes(png16(values))
    else:
        tifffile.imwrite(path, values, **{"photometric": "minisblack", **options})
    return path


def scaled(values, low, high):
    """The rule by a slow loop over Python's numbers."""
    flat = [round(min(max((float(v) - low) * 255 / (high - low), 0), 255)) for v in values.ravel()]
    return np.array(flat).reshape(values.shape)


def same(found, expected):
    return np.abs(found.astype(int) - expected).max() <= 1  # halves may round either way


# The range


@pytest.mark.parametrize(("top", "bits"), [(200, 8), (1000, 10), (4095, 12), (4096, 14), (65535, 16)])
def test_auto_takes_the_bits_of_the_camera_for_all_images_together(tmp_path, top, bits):
    bright, dim = (RNG.integers(0, limit, (8, 8), dtype=np.uint16) for limit in (top, top // 4))
    bright[0, 0] = top
    write(tmp_path / "d" / "0.tif", bright), write(tmp_path / "d" / "1.tif", dim)
    x, _, skipped = read_images(tmp_path / "d")
    assert skipped == []
    assert same(x[0, ..., 0], scaled(bright, 0, 2**bits - 1))
    assert same(x[1, ..., 0], scaled(dim, 0, 2**bits - 1)), "a dim image stays dim"


def test_full_is_the_whole_range_of_the_type(tmp_path):
    values = RNG.integers(0, 4096, (8, 8), dtype=np.uint16)
    write(tmp_path / "a.tif", values)
    assert same(read_images(tmp_path / "a.tif", intensity="full")[0][0, ..., 0], scaled(values, 0, 65535))
    assert read_images(tmp_path / "a.tif", intensity="full")[0].max() <= 16


def test_percentiles_ignore_hot_pixels_and_are_per_channel(tmp_path):
    values = np.stack([RNG.normal(100, 5, (64, 64)), RNG.normal(9000, 300, (64, 64))], 2).clip(0).astype(np.uint16)
    values[3, 3] = 65535
    write(tmp_path / "a.tif", values, planarconfig="contig")
    x = read_images(tmp_path / "a.tif", intensity="percentile")[0][0]
    for channel in range(2):
        low, high = np.percentile(values[..., channel], (0.5, 99.5))
        assert same(x[..., channel], scaled(values[..., channel], low, high))
        assert x[..., channel].std() > 40


@pytest.mark.parametrize(
    ("low", "high", "expected"), [(0, 1, (0, 1)), (0, 200, (0, 255)), (-1000, 3000, (-1000, 3000)), (5, 9e5, (5, 9e5))]
)
def test_floats_by_the_values_that_occur(tmp_path, low, high, expected):
    values = np.linspace(low, high, 64, dtype=np.float32).reshape(8, 8)
    write(tmp_path / "a.tif", values)
    assert same(read_images(tmp_path / "a.tif")[0][0, ..., 0], scaled(values, *expected))


def test_the_range_is_that_of_the_training_images(tmp_path):
    for part, top in (("train/a", 900), ("train/b", 1000), ("test/a", 4000), ("test/b", 4000)):
        write(tmp_path / "d" / part / "0.tif", np.full((4, 4), top, np.uint16))
    data = load_folder(tmp_path / "d")
    assert data.ranges == ((0.0, 1023.0),)
    assert data.test.x.min() == 255
    again = load_folder(tmp_path / "d")
    assert again.ranges == data.ranges, "from the cache"
    assert load_folder(tmp_path / "d", intensity="full").train.x.max() == 4


def test_plain_images_have_no_range(tmp_path):
    for name in ("a", "b"):
        (tmp_path / "d" / name).mkdir(parents=True)
        for i in range(2):
            Image.new("RGB", (4, 4), (i, 2, 3)).save(tmp_path / "d" / name / f"{i}.png")
    assert load_folder(tmp_path / "d", intensity="percentile").ranges == ()


def test_constant_and_empty_ranges():
    assert find_ranges([np.full((2, 2, 1), 7, np.uint16)], "percentile") == ((7.0, 8.0),)
    assert find_ranges([], "auto") == find_ranges([], "percentile") == ()
    assert find_ranges([np.full((2, 2, 1), np.nan)], "auto") == ()
    assert to_bytes(np.full((1, 1, 3), 50.0), ((0, 100), (0, 200))).tolist() == [[[64, 64, 64]]]


def test_nan_and_broken_files_are_skipped_with_the_reason(tmp_path):
    for i in range(4):
        write(tmp_path / "d" / f"{i}.tif", RNG.random((4, 4), dtype=np.float32))
    values = np.zeros((4, 4), np.float32)
    values[1, 1] = np.nan
    write(tmp_path / "d" / "nan.tif", values)
    (tmp_path / "d" / "cut.tif").write_bytes(
        write(tmp_path / "x.tif", np.zeros((9, 4, 4), np.uint16)).read_bytes()[:200]
    )
    x, names, skipped = read_images(tmp_path / "d")
    assert len(x) == len(names) == 4
    assert dict(skipped)["nan.tif"] == "holds NaN or infinite values"
    assert "cut.tif" in dict(skipped)


def test_an_unknown_rule_is_refused(tmp_path):
    with pytest.raises(OptionError, match="intensity must be one of auto, full, percentile, got 'most'"):
        load_ssl(str(tmp_path), intensity="most")


# Channels


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
@pytest.mark.parametrize(
    "layout", [{"planarconfig": "contig"}, {"planarconfig": "separate"}, {"imagej": True}, {"ome": True}]
)
@pytest.mark.parametrize("channels", [2, 5])
def test_multi_channel_tiff(tmp_path, dtype, layout, channels):
    top = {np.uint8: 255, np.uint16: 65535, np.float32: 1}[dtype]
    values = (RNG.random((6, 7, channels)) * top).astype(dtype)
    planes = values if layout.get("planarconfig") == "contig" else np.moveaxis(values, 2, 0)
    axes = {} if "planarconfig" in layout else {"metadata": {"axes": "CYX"}}
    write(tmp_path / "a.tif", np.ascontiguousarray(planes), **layout, **axes)
    x, _, skipped = read_images(tmp_path / "a.tif")
    assert skipped == []
    assert same(x[0], scaled(values, 0, top))


def test_other_pages_are_not_channels(tmp_path):
    values = RNG.integers(0, 255, (5, 6, 7), dtype=np.uint8)
    write(tmp_path / "a.tif", values, imagej=True, metadata={"axes": "ZYX"})
    assert np.array_equal(read_images(tmp_path / "a.tif")[0][0, ..., 0], values[0])


def test_sixteen_bit_color_keeps_its_lower_bits(tmp_path):
    values = RNG.integers(0, 4096, (6, 7, 3), dtype=np.uint16)
    write(tmp_path / "d" / "a.png", values)
    write(tmp_path / "d" / "b.tif", values, photometric="rgb")
    x = read_images(tmp_path / "d")[0]
    assert same(x, scaled(values, 0, 4095))


def test_sixteen_bit_alpha_is_put_over_white(tmp_path):
    values = np.zeros((4, 4, 4), np.uint16)
    values[:2, :, 3] = 65535
    write(tmp_path / "a.png", values)
    x = read_images(tmp_path / "a.png", intensity="full")[0][0]
    assert (x[:2].max(), x[2:].min()) == (0, 255)
    gray = values[..., [0, 3]]
    write(tmp_path / "g.png", gray)
    assert read_images(tmp_path / "g.png", intensity="full")[0].shape == (1, 4, 4, 1)


def test_every_channel_is_resized_as_pillow_resizes_gray(tmp_path):
    values = RNG.integers(0, 256, (12, 20, 4), dtype=np.uint8)
    write(tmp_path / "a.tif", values, planarconfig="contig")
    x = read_images(tmp_path / "a.tif", size=6)[0][0]
    for channel in range(4):
        plane = ImageOps.fit(Image.fromarray(values[..., channel]), (6, 6), Image.Resampling.BILINEAR)
        assert np.array_equal(x[..., channel], np.asarray(plane))


def test_rgb_takes_the_first_three_channels_and_others_are_skipped(tmp_path):
    values = RNG.integers(0, 256, (3, 4, 4, 5), dtype=np.uint8)
    for i, image in enumerate(values):
        write(tmp_path / "d" / f"{i}.tif", image, planarconfig="contig")
    Image.new("RGB", (4, 4)).save(tmp_path / "d" / "rgb.png")
    assert np.array_equal(read_images(tmp_path / "d", mode="rgb")[0][:3], values[..., :3])
    x, _, skipped = read_images(tmp_path / "d")
    assert np.array_equal(x, values)
    assert skipped == [("rgb.png", "is gray or RGB, and 5 channels are needed")]


def test_too_many_channels(tmp_path):
    write(tmp_path / "a.tif", np.zeros((4, 4, 20), np.uint8), planarconfig="contig")
    with pytest.raises(UserError, match="has 20 channels, and at most 16 are read"):
        read_images(tmp_path / "a.tif")


# Arrays


@pytest.mark.parametrize("channels", [1, 2, 4, 16])
def test_arrays_of_sixteen_bits_and_many_channels(channels):
    x = RNG.integers(0, 4096, (6, 5, 5, channels), dtype=np.uint16)
    data = from_arrays(x, [0, 1, 0, 1, -1, -1], x[:2] * 3, [0, 1])
    assert data.ranges == ((0.0, 4095.0),)
    assert same(data.train.x, scaled(x, 0, 4095))
    assert same(data.test.x, scaled(x[:2] * 3, 0, 4095))


def test_float_arrays_of_any_range():
    x = RNG.normal(0, 100, (6, 5, 5, 4))
    data = from_arrays(x, [0, 1, 0, 1, 0, 1])
    assert same(data.train.x, scaled(x, x.min(), x.max()))
    assert from_arrays(x.clip(0, 1), [0, 1] * 3).ranges == ()
    x[0, 0, 0, 0] = np.nan
    with pytest.raises(UserError, match="nan"):
        from_arrays(x, [0, 1] * 3)


def test_text_labels():
    x = np.zeros((4, 3, 3), np.uint8)
    data = SSLData.from_arrays(x, np.array(["dog", "cat", -1, "dog"], dtype=object), x[:2], ["cat", "dog"])
    assert data.dataset.classes == ("cat", "dog")
    assert data.dataset.train.y.tolist() == [1, 0, -1, 1]
    assert data.dataset.test.y.tolist() == [0, 1]
    named = SSLData.from_arrays(x, ["b", "a", "b", "a"], classes=("b", "a"))
    assert named.dataset.train.y.tolist() == [0, 1, 0, 1]
    with pytest.raises(UserError, match="1 labels are not in classes, first 'dgo'; did you mean dog"):
        SSLData.from_arrays(x, ["cat", "dog", "dgo", "cat"], classes=("cat", "dog"))


# Photos


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["jpg", "tif", "webp", "avif"])
def test_every_orientation_on_the_pixels(tmp_path, orientation, kind):
    """The upright image has four corners of its own; it is stored turned, as a camera does."""
    upright = np.zeros((32, 48), np.uint8)
    upright[:16, :24], upright[:16, 24:], upright[16:, :24] = 250, 170, 90
    turned = {1: upright, 2: upright[:, ::-1], 3: upright[::-1, ::-1], 4: upright[::-1], 5: upright.T,
              6: np.rot90(upright), 7: upright[::-1, ::-1].T, 8: np.rot90(upright, -1)}[orientation]  # fmt: skip
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(np.ascontiguousarray(turned)).convert("RGB").save(tmp_path / f"a.{kind}", exif=exif, quality=95)
    x = read_images(tmp_path / f"a.{kind}", mode="gray")[0][0, ..., 0]
    assert x.shape == (32, 48)
    assert np.abs(x.astype(int) - upright).mean() < 6


def test_heic_is_read_with_its_extra(tmp_path):
    heif = pytest.importorskip("pillow_heif")
    pixels = np.zeros((64, 64, 3), np.uint8)
    pixels[:, :32] = 200
    heif.from_pillow(Image.fromarray(pixels)).save(tmp_path / "a.heic", quality=95)
    x, _, skipped = read_images(tmp_path / "a.heic")
    assert skipped == []
    assert np.abs(x[0].astype(int) - pixels).mean() < 4


def test_without_the_extra_the_remedy_is_named(tmp_path, monkeypatch):
    """Pillow is told to know nothing of HEIC, as where the extra is not installed."""
    heif = pytest.importorskip("pillow_heif")
    for part in ("labeled/a", "labeled/b", "unlabeled"):
        (tmp_path / "d" / part).mkdir(parents=True)
        for i in range(3):
            Image.new("RGB", (8, 8), (i, 2, 3)).save(tmp_path / "d" / part / f"{i}.png")
    heif.from_pillow(Image.new("RGB", (8, 8))).save(tmp_path / "d" / "unlabeled" / "photo.HEIC")
    with_extra = load_folder(tmp_path / "d")
    monkeypatch.setattr(deep, "read_heif", lambda: False)
    monkeypatch.setattr("vcc_infuse.data.sources.folder.read_heif", lambda: False)
    monkeypatch.setattr(deep, "formats", lambda: ("PNG",))
    without = load_folder(tmp_path / "d")
    assert (len(with_extra.train), len(without.train)) == (10, 9)
    assert without.skipped == (("unlabeled/photo.HEIC", "HEIC or AVIF, which needs: pip install 'vcc-infuse[heif]'"),)


def test_utf8_names_in_a_zip_that_does_not_say_so(tmp_path):
    """As Linux zip writes them: the bytes are UTF-8 and the flag is not set."""
    file = io.BytesIO()
    Image.new("L", (4, 4), 77).save(file, "PNG")
    names = ["Käfer/größe.png", "Käfer/猫.png", "plain/a.png"]
    (tmp_path / "b.zip").write_bytes(_plain_names(names, file.getvalue()))
    with open_store(tmp_path / "b.zip") as store:
        assert sorted(store.images()) == sorted(names)
        assert Image.open(store.open(names[1])).getpixel((0, 0)) == 77


def _plain_names(names, content):
    """A zip written by hand, without the UTF-8 flag."""
    body, directory = b"", b""
    for name in map(str.encode, names):
        common = struct.pack(
            "<HHHHHIIIHH", 20, 0, 0, 0, 33, zlib.crc32(content), len(content), len(content), len(name), 0
        )
        directory += b"PK\1\2\x14\0" + common + struct.pack("<HHHII", 0, 0, 0, 0, len(body)) + name
        body += b"PK\3\4" + common + name + content
    end = struct.pack("<HHHHIIH", 0, 0, len(names), len(names), len(directory), len(body), 0)
    return body + directory + b"PK\5\6" + end
