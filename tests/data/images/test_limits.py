"""Small files that would unpack to much memory, deep folders, and labels beyond reason: refused before they cost."""

import struct
import zipfile
import zlib

import numpy as np
import pytest
import tifffile
from PIL import Image

from vcc_infuse import SSLData, UserError
from vcc_infuse.data.images.decode import fit
from vcc_infuse.data.images.high_bit_depth import BAND, open_image, to_bytes
from vcc_infuse.data.images.store import Limits, open_store
from vcc_infuse.inference.inputs import read_rows

SHAPE = (8, 8, 3)


def png(path, width=8, height=8, tail=0):
    """A PNG whose header says any size; its data are those of a small image."""
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))  # noqa: E731
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + bytes(3 * 8) for _ in range(8)))
    parts = [b"\x89PNG\r\n\x1a\n", chunk(b"IHDR", header), chunk(b"IDAT", pixels), chunk(b"IEND", b"")]
    path.write_bytes(b"".join(parts) + bytes(tail))
    return path


def errors(path, limits=None):
    return {row.name: row.error for row in read_rows(path, SHAPE, limits=limits)}


def test_a_file_and_its_pixels_are_limited_each_by_its_option(tmp_path):
    png(tmp_path / "small.png")
    png(tmp_path / "tail.png", tail=2 * 2**20)
    png(tmp_path / "wide.png", 9_000, 12_000)
    found = errors(tmp_path, Limits(file_mb=1))
    assert found["small.png"] == ""
    assert found["tail.png"] == "the file takes 2 MB, and limits.file_mb is 1"
    assert found["wide.png"] == "the image takes 309 MB, and limits.image_mb is 256"
    assert errors(tmp_path)["tail.png"] == ""


def test_an_entry_of_a_zip_is_limited_before_it_is_unpacked(tmp_path):
    small = png(tmp_path / "small.png").read_bytes()
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a.png", small)
        file.writestr("b.png", small + bytes(3 * 2**20))
    found = errors(tmp_path / "bomb.zip", Limits(file_mb=2))
    assert found == {"a.png": "", "b.png": "the file takes 3 MB, and limits.file_mb is 2"}


def test_a_stack_of_pages_is_limited(tmp_path):
    tifffile.imwrite(tmp_path / "stack.tif", np.zeros((5, 300, 300), np.float32), metadata={"axes": "CYX"})
    with open(tmp_path / "stack.tif", "rb") as file:
        assert open_image(file).nbytes == 5 * 300 * 300 * 4
        with pytest.raises(UserError, match=r"the image takes 2 MB, and limits\.image_mb is 1"):
            open_image(file, Limits(image_mb=1))


def test_rarely_used_formats_are_not_decoded(tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "really.png", "PCX")
    assert errors(tmp_path) == {"really.png": "not an image file"}


def deep_folder(root, depth):
    folder = root
    for _ in range(depth):
        folder = folder / "d"
    folder.mkdir(parents=True)
    return png(folder / "x.png")


def test_folders_are_limited_in_depth(tmp_path):
    deep_folder(tmp_path, 101)
    with pytest.raises(UserError, match=r"nested more than limits\.depth=100 deep"):
        list(open_store(tmp_path).images())
    assert len(list(open_store(tmp_path, Limits(depth=101)).images())) == 1


@pytest.mark.parametrize("label", [10**9, 10**18, 7.0])
def test_a_label_beyond_the_examples_is_one_line(label):
    x = np.zeros((4, 8, 8), np.uint8)
    with pytest.raises(UserError, match="4 examples cannot fill that many classes"):
        SSLData.from_arrays(x, np.array([0, 1, -1, label]))


@pytest.mark.parametrize("option", ["image_mb", "file_mb", "depth"])
def test_limits_are_positive(option):
    with pytest.raises(UserError, match=option):
        Limits(**{option: 0})


def test_bands_give_the_same_pixels_as_the_whole_image():
    """Against the whole image at once, with several bands and a rest."""
    rng = np.random.default_rng(0)
    rgba = Image.fromarray(rng.integers(0, 256, (2 * BAND + 3, 5, 4), dtype=np.uint8), "RGBA")
    whole = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")
    assert np.array_equal(fit(rgba, (2 * BAND + 3, 5, 3)), np.asarray(whole))
    deep = rng.integers(0, 65536, (2 * BAND + 3, 5, 2)).astype(np.uint16)
    expected = np.rint((deep - [10.0, 0.0]) * (255 / np.array([990.0, 60000.0]))).clip(0, 255)
    assert np.array_equal(to_bytes(deep, ((10, 1000), (0, 60000))), expected.astype(np.uint8))
