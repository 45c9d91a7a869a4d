"""Images wherever fsspec reaches: folders, zips, WebDataset tars and Parquet files, here or behind a URL.

They are listed as pieces, which any process can read without the others. A tar or Parquet file is one piece; a folder
or zip is cut into pieces of a few thousand images.
"""

from __future__ import annotations

import glob
import gzip
import hashlib
import io
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import numpy as np
from fsspec import AbstractFileSystem
from fsspec.core import url_to_fs

from ...errors import OptionError, UserError
from ...utils.io import in_words
from ..images.decode import decode
from ..images.store import FolderStore, Limits, Store, ZipStore, is_hidden, is_image
from .other_datasets import IMAGE_COLUMNS

Kind = Literal["files", "zip", "tar", "parquet"]
ENDINGS: dict[str, Kind] = {".tar": "tar", ".tar.gz": "tar", ".tgz": "tar", ".parquet": "parquet", ".zip": "zip"}
NAME_COLUMNS = ("file", "path", "image_path", "filename", "file_name", "name", "__key__")
READERS = 8  # files that are read at a time from a distant file system, where most of the time is spent waiting
READ = 64  # images
END_OF_TAR = bytes(1024)
PHOTO = 2**14  # bytes of a small photo, by which images of a file are guessed
DAMAGE = (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError, NotImplementedError)


class Piece(NamedTuple):
    """Images that are read together.

    Attributes:
        kind: what `url` is.
        url: a folder, zip, tar or Parquet file.
        prefix: what precedes the names of its images.
        names: its images; none for a tar or Parquet file, which is read as a whole.
        stamp: changes with the content.
        images: how many, roughly where nobody has counted them.
    """

    kind: Kind
    url: str
    prefix: str
    names: tuple[str, ...]
    stamp: str
    images: int

    @property
    def key(self) -> str:
        """The same for the same images, and for no others."""
        return hashlib.sha256(repr(self[:5]).encode("utf-8", "surrogateescape")).hexdigest()[:32]


class Encoded(NamedTuple):
    """An image file: its name, and its content or why there is none."""

    name: str
    content: bytes
    reason: str = ""


class Decoded(NamedTuple):
    """Some images of a piece: the names and pixels of those that can be read, and the reasons of the others."""

    names: list[str]
    x: np.ndarray
    skipped: list[tuple[str, str]]


# --- what there is


def list_pieces(source: str, *, images: int, limits: Limits | None = None) -> list[Piece]:
    """The pieces of a folder, file, URL or pattern, in the order of their names.

    Args:
        source: such as `photos`, `photos.zip`, `s3://bucket/train-*.tar` or `file:///data/part-*.parquet`.
        images: of a folder or zip that make one piece.
        limits: how deep folders may be nested.
    """
    limits = limits or Limits()
    with _reaching(source, listing=True):
        fs, path = url_to_fs(source)
        stamps: Mapping[str, str]
        if _is_pattern(fs, path):
            base = _fixed_part(path)
            stamps = _below(base, fs.glob(path, detail=True))
        elif fs.isdir(path):
            base = path.rstrip("/")
            stamps = _listed(fs, base, limits)
        elif fs.exists(path):
            base, _, name = path.rpartition("/")
            stamps = {name: _stamp(fs.info(path))}
        else:
            raise OptionError("data", source, "must be a path, pattern or address of something", "check it")
        return _cut(fs, base, stamps, source, images, limits)


def _cut(
    fs: AbstractFileSystem, base: str, stamps: Mapping[str, str], source: str, images: int, limits: Limits
) -> list[Piece]:
    """Files that hold images each by itself, others in groups; both at once are refused."""
    kinds = {name: _kind(name) for name in stamps if not is_hidden(name)}
    photos = [name for name in kinds if is_image(name)]
    files = {name: kind for name, kind in kinds.items() if kind is not None}
    if photos and files:
        both = f"must hold images or files of many, not both ({photos[0]}, {next(iter(files))})"
        raise OptionError("data", source, both, "give a pattern such as '*.tar'")
    if not photos and not files:
        raise OptionError("data", source, f"must hold images, or files of many ({' '.join(ENDINGS)})", "check it")
    if photos:
        return _grouped("files", fs.unstrip_protocol(base), "", {name: stamps[name] for name in photos}, images)
    pieces = []
    for name, kind in files.items():
        url = fs.unstrip_protocol(f"{base}/{name}")
        prefix = f"{name}/" if len(files) > 1 else ""
        if kind == "zip":
            with _zip(fs, f"{base}/{name}", limits) as store:
                inside = {entry: store.stamps[entry] for entry in store.images()}
            pieces += _grouped("zip", url, prefix, inside, images)
        else:
            size = int(stamps[name].split()[0])
            pieces.append(Piece(kind, url, prefix, (), stamps[name], 1 + size // PHOTO))
    if not pieces:
        raise OptionError("data", source, "must hold images", "give another file or pattern")
    return pieces


def _grouped(kind: Kind, url: str, prefix: str, stamps: Mapping[str, str], images: int) -> list[Piece]:
    pieces = []
    names = iter(stamps)
    while group := tuple(islice(names, images)):
        stamp = hashlib.sha256("\n".join(stamps[name] for name in group).encode()).hexdigest()
        pieces.append(Piece(kind, url, prefix, group, stamp, len(group)))
    return pieces


def _kind(name: str) -> Kind | None:
    return next((kind for ending, kind in ENDINGS.items() if name.lower().endswith(ending)), None)


def _is_pattern(fs: AbstractFileSystem, path: str) -> bool:
    return glob.has_magic(path) and not fs.exists(path)


def _fixed_part(pattern: str) -> str:
    """The folders of a pattern that stand for themselves."""
    folders = pattern.split("/")
    return "/".join(folders[: next(place for place, folder in enumerate(folders) if glob.has_magic(folder))])


def _listed(fs: AbstractFileSystem, folder: str, limits: Limits) -> Mapping[str, str]:
    """Names below a folder with their stamps; of a local one without hidden files and circles of links."""
    if _is_local(fs):
        return FolderStore(Path(folder), limits).stamps
    return _below(folder, fs.find(folder, maxdepth=limits.depth, detail=True))


def _below(folder: str, found: Mapping[str, Any]) -> Mapping[str, str]:
    return {name.removeprefix(f"{folder}/"): _stamp(found[name]) for name in sorted(found)}


def _stamp(info: Mapping[str, Any]) -> str:
    """The size, and what else says that a file has changed, as far as the file system tells."""
    changes = [str(info[key]) for key in ("ETag", "etag", "mtime", "LastModified", "last_modified") if info.get(key)]
    return " ".join([str(info.get("size") or 0), *changes[:1]])


def _is_local(fs: AbstractFileSystem) -> bool:
    return "file" in ((fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol)


@contextmanager
def _reaching(url: str, *, listing: bool = False) -> Iterator[None]:
    """Turn what a file system raises into one line; what may pass is an OSError, so that it is tried again.

    File systems come from many packages, whose errors have no common base class.
    """
    try:
        yield
    except (UserError, *DAMAGE):
        raise
    except ImportError as fault:
        remedy = "install it, or: pip install 'vcc-infuse[cluster]'"
        raise UserError(f"{url} needs a package that is missing ({fault}); {remedy}") from fault
    except FileNotFoundError as fault:
        raise UserError(f"{url}: no such file, folder or bucket; check it") from fault
    except PermissionError as fault:
        raise UserError(f"{url}: access denied ({in_words(fault)}); check the permissions or credentials") from fault
    except Exception as fault:
        if listing:
            raise OptionError("data", url, f"must be something to read ({in_words(fault)})", "check it") from fault
        raise OSError(f"{url} cannot be read: {in_words(fault)}") from fault


# --- reading a piece


def read_piece(piece: Piece, shape: tuple[int, int, int], size: int, limits: Limits, threads: int) -> Iterator[Decoded]:
    """The images of a piece as uint8 of `shape`, about `size` at a time.

    A file that cannot be reached raises OSError; one that is damaged as a whole, UserError.
    """
    files = _read(piece, limits)
    while chunk := list(islice(files, size)):
        names = [f"{piece.prefix}{file.name}" for file in chunk]
        places = [f"{place}/{file.name}" for place, file in enumerate(chunk)]  # a name may occur twice
        contents = {place: file.content for place, file in zip(places, chunk, strict=True)}
        x = np.zeros((len(chunk), *shape), np.uint8)
        bad = decode(MemoryStore(contents, limits), places, x, threads)
        bad |= {place: file.reason for place, file in enumerate(chunk) if file.reason}
        good = [place for place in range(len(chunk)) if place not in bad]
        yield Decoded([names[place] for place in good], x[good], [(names[place], bad[place]) for place in sorted(bad)])


def _read(piece: Piece, limits: Limits) -> Iterator[Encoded]:
    fs, path = url_to_fs(piece.url)
    if piece.kind == "tar":
        return _read_tar(fs, path, piece.url, limits)
    if piece.kind == "parquet":
        return _read_parquet(fs, path, piece.url)
    return _read_files(fs, path, piece, limits)


class MemoryStore(Store):
    """Files whose content is in memory already."""

    def __init__(self, files: Mapping[str, bytes], limits: Limits) -> None:
        self.files = files
        self.limits = limits

    def size(self, name: str) -> int:
        """Bytes of the file."""
        return len(self.files[name])

    def _open_file(self, name: str) -> BinaryIO:
        return io.BytesIO(self.files[name])


def _zip(fs: AbstractFileSystem, path: str, limits: Limits) -> ZipStore:
    return ZipStore(Path(path), limits, None if _is_local(fs) else lambda: fs.open(path, "rb"))


def _read_files(fs: AbstractFileSystem, path: str, piece: Piece, limits: Limits) -> Iterator[Encoded]:
    """Files of a folder or zip; several at a time where the way is long."""
    if piece.kind == "zip":
        with _zip(fs, path, limits) as store:
            yield from (_entry(store, name, piece.url) for name in piece.names)
        return

    def read(name: str) -> Encoded:
        with _reaching(f"{piece.url}/{name}"):
            return Encoded(name, fs.cat_file(f"{path}/{name}"))

    with ThreadPoolExecutor(1 if _is_local(fs) else READERS) as pool:
        for start in range(0, len(piece.names), READ):
            yield from pool.map(read, piece.names[start : start + READ])


def _entry(store: Store, name: str, url: str) -> Encoded:
    try:
        with _reaching(url), store.open(name) as file:
            return Encoded(name, file.read())
    except (UserError, *DAMAGE) as fault:
        return Encoded(name, b"", in_words(fault))


class _Tail:
    """A file that remembers the last bytes that were read of it."""

    def __init__(self, file: Any) -> None:
        self.file = file
        self.last = b""

    def read(self, size: int) -> bytes:
        data: bytes = self.file.read(size)
        self.last = (self.last + data[-len(END_OF_TAR) :])[-len(END_OF_TAR) :]
        return data


def _read_tar(fs: AbstractFileSystem, path: str, url: str, limits: Limits) -> Iterator[Encoded]:
    """Images of a tar in their order. tarfile takes a cut tar for a short one, so the end is looked at."""
    opener = gzip.open if path.lower().endswith("gz") else lambda file: file
    try:
        with _reaching(url), fs.open(path, "rb") as raw:
            tail = _Tail(opener(raw))
            with tarfile.open(fileobj=tail, mode="r|") as archive:  # type: ignore[call-overload]
                yield from (file for member in archive if (file := _member(archive, member, limits)))
            while tail.read(2**20):
                pass
        if tail.last != END_OF_TAR:
            raise EOFError("it ends too early")
    except DAMAGE as fault:
        raise _damaged(url, fault) from fault


def _damaged(url: str, fault: BaseException) -> UserError:
    return UserError(f"{url} is damaged ({in_words(fault)}); copy or make it again")


def _member(archive: tarfile.TarFile, member: tarfile.TarInfo, limits: Limits) -> Encoded | None:
    if not member.isfile() or not is_image(member.name) or is_hidden(member.name):
        return None
    try:
        limits.check("file", member.size)
    except UserError as fault:
        return Encoded(member.name, b"", str(fault))
    content = archive.extractfile(member)
    assert content is not None
    return Encoded(member.name, content.read())


def _read_parquet(fs: AbstractFileSystem, path: str, url: str) -> Iterator[Encoded]:
    """Images of a Parquet file, in its order."""
    with _reaching(url):
        from pyarrow import ArrowInvalid
        from pyarrow.parquet import ParquetFile

        with fs.open(path, "rb") as raw:
            try:
                table = ParquetFile(raw)
                columns = _columns(table.schema_arrow, url)
                row = 0
                for batch in table.iter_batches(READ, columns=list(columns)):
                    for values in zip(*(batch.column(name).to_pylist() for name in columns), strict=True):
                        yield _cell(values, row)
                        row += 1
            except ArrowInvalid as fault:
                raise _damaged(url, fault) from fault


def _columns(schema: Any, url: str) -> Sequence[str]:
    """The column of images, and the one of their names if there is one."""
    from pyarrow import types

    def is_bytes(kind: Any) -> bool:
        return bool(types.is_binary(kind) or types.is_large_binary(kind))

    def holds_images(kind: Any) -> bool:
        return is_bytes(kind) or (types.is_struct(kind) and any(part.name == "bytes" for part in kind))

    candidates = [field.name for field in schema if holds_images(field.type)]
    usual = [name for name in IMAGE_COLUMNS if name in candidates]
    if not usual and len(candidates) != 1:
        have = ", ".join(f"{field.name} ({field.type})" for field in schema)[:200]
        need = "a column `image` of bytes, or of {bytes, path}"
        raise UserError(f"{url} has no column of images, which needs {need}; it has {have}")
    image = (usual or candidates)[0]
    texts = [field.name for field in schema if types.is_string(field.type) or types.is_large_string(field.type)]
    return [image, *[name for name in NAME_COLUMNS if name in texts and name != image][:1]]


def _cell(values: tuple[Any, ...], row: int) -> Encoded:
    image = values[0] if isinstance(values[0], dict) else {"bytes": values[0]}
    name = (values[1] if len(values) > 1 else None) or image.get("path") or f"{row}"
    content = image.get("bytes")
    return Encoded(str(name), content or b"", "" if content else "the row has no bytes")
