"""Pieces of folders, zips, tars and Parquet files, here and behind a URL, against PIL."""

import tarfile

import fsspec
import numpy as np
import pytest
from PIL import Image, ImageOps
from tests.helpers.photo_files import draw, name_of, write_parquet, write_tar, write_zip

from vcc_infuse.data.images.store import Limits
from vcc_infuse.data.sources.remote import list_pieces, read_piece
from vcc_infuse.errors import UserError

SIDE = 16


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("remote")
    photos = draw(folder)
    write_zip(folder / "all.zip", photos)
    write_tar(folder / "all.tar", photos)
    write_tar(folder / "all.tar.gz", photos, "w:gz")
    write_parquet(folder / "flat.parquet", photos, nested=False)
    write_parquet(folder / "nested.parquet", photos, nested=True)
    for number in range(3):
        write_tar(folder / f"part-{number}.tar", photos[4 * number : 4 * number + 4])
    return folder


@pytest.fixture(scope="module")
def expected(root):
    """What PIL makes of the photos, by name."""
    photos = sorted((root / "photos").rglob("*.png"))
    fitted = (ImageOps.fit(Image.open(photo), (SIDE, SIDE), Image.Resampling.BILINEAR) for photo in photos)
    return {name_of(photo): np.asarray(image) for photo, image in zip(photos, fitted, strict=True)}


def read(source, images=5, size=3, **limits):
    """Names in their order, pixels by name, and what was skipped."""
    names, pixels, skipped = [], {}, []
    for piece in list_pieces(str(source), images=images):
        for chunk in read_piece(piece, (SIDE, SIDE, 3), size, Limits(**limits), 1):
            assert len(chunk.names) + len(chunk.skipped) <= size
            names += chunk.names
            pixels |= dict(zip(chunk.names, chunk.x, strict=True))
            skipped += chunk.skipped
    return names, pixels, skipped


def same(pixels, expected):
    return pixels.keys() == expected.keys() and all(np.array_equal(pixels[name], expected[name]) for name in expected)


@pytest.mark.parametrize("source", ["photos", "all.zip", "all.tar", "all.tar.gz", "flat.parquet", "nested.parquet"])
@pytest.mark.parametrize("scheme", ["", "file://"])
def test_every_kind_of_file_holds_the_same_photos(root, expected, source, scheme):
    names, pixels, skipped = read(f"{scheme}{root / source}")
    assert names == sorted(expected)
    assert same(pixels, expected)
    assert skipped == []


@pytest.mark.parametrize("source", ["photos", "photos/*/*.png", "all.zip", "all.tar", "flat.parquet", "part-*.tar"])
def test_another_file_system(root, expected, source):
    """fsspec's file system in memory, which is none of this machine's."""
    fs = fsspec.filesystem("memory")
    fs.put(str(root), "/pool", recursive=True)
    names, pixels, _ = read(f"memory://pool/{source}")
    assert len(names) == len(expected)
    assert same({"/".join(name.split("/")[-2:]): x for name, x in pixels.items()}, expected)
    fs.rm("/pool", recursive=True)


def test_names_say_in_which_of_several_files_an_image_is(root):
    names, _, _ = read(root / "part-*.tar")
    assert names[::4] == ["part-0.tar/a/00.png", "part-1.tar/a/08.png", "part-2.tar/b/05.png"]


def test_a_folder_is_cut_and_a_tar_is_not(root):
    assert [len(piece.names) for piece in list_pieces(str(root / "photos"), images=5)] == [5, 5, 2]
    assert [len(piece.names) for piece in list_pieces(str(root / "all.zip"), images=7)] == [7, 5]
    assert len(list_pieces(str(root / "part-*.tar"), images=1)) == 3


def test_the_key_changes_with_the_content_alone(root, tmp_path):
    keys = [[piece.key for piece in list_pieces(str(root / "photos"), images=5)] for _ in range(2)]
    assert keys[0] == keys[1]
    assert len(set(keys[0])) == 3
    photos = draw(tmp_path)
    before = [piece.key for piece in list_pieces(str(tmp_path), images=5)]
    photos[6].write_bytes(photos[7].read_bytes() + b" ")
    after = [piece.key for piece in list_pieces(str(tmp_path), images=5)]
    assert [one == other for one, other in zip(before, after, strict=True)] == [True, False, True]


def test_unreadable_images_are_listed_and_the_others_stay(tmp_path):
    photos = draw(tmp_path)
    photos[3].write_bytes(b"no image")
    write_tar(tmp_path / "x.tar", photos)
    for source in (tmp_path / "photos", tmp_path / "x.tar"):
        names, _, skipped = read(source)
        assert len(names) == 11
        assert skipped == [(name_of(photos[3]), "not an image file")]
    names, _, skipped = read(tmp_path / "x.tar", file_mb=1, image_mb=1)
    assert len(names) == 11


def test_what_is_too_large_is_not_unpacked(tmp_path, monkeypatch):
    photos = draw(tmp_path)
    photos[0].write_bytes(photos[0].read_bytes() + bytes(2**20))
    opened = []
    real = tarfile.TarFile.extractfile
    monkeypatch.setattr(tarfile.TarFile, "extractfile", lambda tar, one: opened.append(one.name) or real(tar, one))
    for source in (write_tar(tmp_path / "x.tar", photos), write_zip(tmp_path / "x.zip", photos), tmp_path / "photos"):
        names, _, ((name, reason),) = read(source, file_mb=1)
        assert (len(names), name) == (11, name_of(photos[0]))
        assert "limits.file_mb is 1" in reason
    assert sorted(opened) == [name_of(photo) for photo in photos[1:]]


def test_a_damaged_entry_of_a_zip_is_one_image(tmp_path):
    photos = draw(tmp_path)
    path = write_zip(tmp_path / "x.zip", photos)
    content = bytearray(path.read_bytes())
    content[content.index(photos[2].read_bytes()) + 40] ^= 255
    path.write_bytes(content)
    names, _, ((name, reason),) = read(path)
    assert (len(names), name) == (11, name_of(photos[2]))
    assert "CRC" in reason


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.9])
@pytest.mark.parametrize("boundary", [0, 100, 512, 700, 1024])
def test_a_cut_tar_is_never_taken_for_a_short_one(root, tmp_path, share, boundary):
    content = (root / "all.tar").read_bytes().rstrip(b"\0")
    content += bytes(-len(content) % 512)
    cut = int(share * len(content)) // 512 * 512 + boundary
    (tmp_path / "cut.tar").write_bytes(content[:cut])
    with pytest.raises(UserError, match="is damaged .*; copy or make it again"):
        read(tmp_path / "cut.tar")


def test_a_cut_or_broken_compressed_tar(root, tmp_path):
    content = (root / "all.tar.gz").read_bytes()
    for name, wrong in (("cut", content[: len(content) // 2]), ("other", b"no gzip at all"), ("nothing", b"")):
        path = tmp_path / f"{name}.tar.gz"
        path.write_bytes(wrong)
        with pytest.raises(UserError, match="is damaged"):
            read(path)


def test_a_broken_parquet_file(root, tmp_path):
    (tmp_path / "cut.parquet").write_bytes((root / "flat.parquet").read_bytes()[:300])
    with pytest.raises(UserError, match=r"cut.parquet is damaged \(.*\); copy or make it again"):
        read(tmp_path / "cut.parquet")


def test_a_parquet_file_without_images(tmp_path):
    import pyarrow
    from pyarrow.parquet import write_table

    write_table(pyarrow.table({"a": [1], "text": ["x"]}), tmp_path / "x.parquet")
    with pytest.raises(UserError, match=r"has no column of images.*it has a \(int64\), text \(string\)"):
        read(tmp_path / "x.parquet")


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        ("nowhere", "data must be a path, pattern or address of something, got 'nowhere'; check it"),
        ("nowhere-*.tar", "data must hold images, or files of many (.tar"),
        ("{root}", "data must hold images or files of many, not both (photos/a/00.png, all.tar"),
        ("moon://bucket/x.tar", "data must be something to read (Protocol not known: moon"),
        ("memory://nowhere/x", "data must be a path, pattern or address of something"),
        ("{root}/empty", "data must hold images, or files of many"),
    ],
)
def test_mistakes_cost_one_line(root, source, hint):
    (root / "empty").mkdir(exist_ok=True)
    with pytest.raises(UserError) as fault:
        list_pieces(source.format(root=root), images=5)
    assert hint in str(fault.value)
    assert "\n" not in str(fault.value)


def test_a_missing_package_has_a_remedy(monkeypatch):
    def missing(url):
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr("vcc_infuse.data.sources.remote.url_to_fs", missing)
    with pytest.raises(UserError, match=r"Install s3fs to access S3\); install it, or: pip install 'vcc-infuse"):
        list_pieces("s3://bucket/x", images=5)


def test_what_may_pass_is_no_mistake(root, monkeypatch):
    """A connection that breaks is an OSError, which is tried again, whatever its library calls it."""

    class BrokenError(Exception):
        pass

    def broken(*_):
        raise BrokenError("connection lost")

    (piece,) = list_pieces(str(root / "photos"), images=50)
    monkeypatch.setattr("fsspec.implementations.local.LocalFileSystem.cat_file", broken)
    with pytest.raises(OSError, match="00.png cannot be read: BrokenError: connection lost"):
        list(read_piece(piece, (SIDE, SIDE, 3), 3, Limits(), 1))
