"""Image files in a folder, a zip or alone, read within limits: a small file can unpack to more than memory holds."""

from __future__ import annotations

import hashlib
import os
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, Literal, Self

from ...errors import UserError, check_integer
from ...utils.suggest import did_you_mean_path

MEGABYTE = 2**20
HEIF = (".avif", ".heic", ".heif")
EXTENSIONS = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp", *HEIF)


def is_image(name: str) -> bool:
    """Whether the file name is that of an image."""
    return name.lower().endswith(EXTENSIONS)


def parts(name: str) -> tuple[str, ...]:
    """The folders and the file name of a path inside a folder or zip, also if written with backslashes."""
    return tuple(part for part in name.replace("\\", "/").split("/") if part not in ("", "."))


def is_hidden(name: str) -> bool:
    """Whether the file, or a folder above it, is hidden or made by the operating system."""
    return any(part.startswith(".") or part == "__MACOSX" for part in parts(name))


@dataclass(frozen=True)
class Limits:
    """How large images and files may be. A larger image is skipped and listed; deeper folders are an error.

    Args:
        image_mb: megabytes that the pixels of an image may take; Pillow itself refuses more than 179 million pixels.
        file_mb: megabytes of a file, or of an entry of a zip when it is unpacked.
        depth: how many folders may be nested.
    """

    image_mb: int = 256
    file_mb: int = 256
    depth: int = 100

    def __post_init__(self) -> None:
        for name in ("image_mb", "file_mb", "depth"):
            check_integer(name, getattr(self, name))

    def check(self, what: Literal["file", "image"], size: int) -> None:
        """Refuse a file by its size before it is read, or an image by its header before it is decoded."""
        most = self.file_mb if what == "file" else self.image_mb
        if size > most * MEGABYTE:
            raise UserError(f"the {what} takes {size / MEGABYTE:,.0f} MB, and limits.{what}_mb is {most}")


class Store:
    """`stamps` maps each visible name (folders end in '/'), in order, to a text that changes with the content."""

    stamps: Mapping[str, str]
    limits = Limits()

    def images(self) -> Iterator[str]:
        """Names of the images, in order; of a folder while it is walked, so that not all names are in memory."""
        return (name for name in self._names() if is_image(name))

    def _names(self) -> Iterator[str]:
        return iter(self.stamps)

    def fingerprint(self) -> str:
        """A digest of all names and stamps."""
        return hashlib.sha256(repr(list(self.stamps.items())).encode("utf-8", "surrogateescape")).hexdigest()

    def open(self, name: str) -> BinaryIO:
        """The named file, for reading; one above the limit is a UserError."""
        self.limits.check("file", self.size(name))
        return self._open_file(name)

    def size(self, name: str) -> int:
        """Bytes of the named file when it is read; of a zip's entry as it is declared, and more are never unpacked."""
        raise NotImplementedError

    def _open_file(self, name: str) -> BinaryIO:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close open files."""


class FolderStore(Store):
    """A folder and everything below it, links included; the stamp is size and modification time."""

    def __init__(self, root: Path, limits: Limits) -> None:
        self.root = root
        self.limits = limits

    @cached_property
    def stamps(self) -> Mapping[str, str]:  # type: ignore[override]
        """Computed on first use, because the names of a huge folder need not be in memory at once."""
        stats = {name: os.stat(self.root / name) for name in self._names()}
        return {n: "" if n.endswith("/") else f"{stat.st_size} {stat.st_mtime_ns}" for n, stat in stats.items()}

    def _names(self) -> Iterator[str]:
        return _walk(self.root, self.limits.depth)

    def size(self, name: str) -> int:
        """As the file system says."""
        return (self.root / name).stat().st_size

    def _open_file(self, name: str) -> BinaryIO:
        return open(self.root / name, "rb")


class FileStore(FolderStore):
    """A single image."""

    def __init__(self, path: Path, limits: Limits) -> None:
        super().__init__(path.parent, limits)
        self.name = path.name

    def _names(self) -> Iterator[str]:
        return iter([self.name])


class ZipStore(Store):
    """A zip file; the stamp is size and checksum. Each thread has its own handle.

    `open_file` opens it where it is no file of this machine.
    """

    def __init__(self, path: Path, limits: Limits, open_file: Callable[[], BinaryIO] | None = None) -> None:
        self.path = path
        self.limits = limits
        self._open_zip = open_file
        self._local = threading.local()
        self._open: list[zipfile.ZipFile] = []
        try:
            entries = self._zip().infolist()
        except (zipfile.BadZipFile, EOFError, ValueError) as error:
            raise UserError(f"{path}: damaged zip file ({error}); copy or download it again") from error
        if any(entry.flag_bits & 1 for entry in entries):
            raise UserError(f"{path}: the zip file has a password; unpack it and use the folder instead")
        self._entries = {_entry_name(entry): entry for entry in entries}
        visible = sorted((name, entry) for name, entry in self._entries.items() if not is_hidden(name))
        self.stamps = {name: f"{entry.file_size} {entry.CRC:08x}" for name, entry in visible}

    def _zip(self) -> zipfile.ZipFile:
        if not hasattr(self._local, "zip"):
            self._local.zip = zipfile.ZipFile(self._open_zip() if self._open_zip else self.path)
            self._open.append(self._local.zip)
        handle: zipfile.ZipFile = self._local.zip
        return handle

    def size(self, name: str) -> int:
        """As the zip declares."""
        return self._entries[name].file_size

    def _open_file(self, name: str) -> BinaryIO:
        return self._zip().open(self._entries[name])  # type: ignore[return-value]

    def __exit__(self, *_: object) -> None:
        for handle in self._open:
            handle.close()


def open_store(path: Path, limits: Limits | None = None) -> Store:
    """The store for a folder, a zip or a single image."""
    limits = limits or Limits()
    if not path.exists():
        raise UserError(f"{path}: no such file or folder{did_you_mean_path(str(path)) or '; check the path'}")
    try:
        if path.is_dir():
            return FolderStore(path, limits)
        if path.suffix.lower() == ".zip" or zipfile.is_zipfile(path):
            return ZipStore(path, limits)
        if is_image(path.name):
            return FileStore(path, limits)
    except PermissionError as error:
        raise UserError(f"{error.filename}: permission denied; make it readable") from error
    raise UserError(f"{path}: neither a folder, a zip file nor an image ({' '.join(EXTENSIONS)})")


def _entry_name(entry: zipfile.ZipInfo) -> str:
    """The name of a zip's entry. Some programs write UTF-8 without saying so, which Python reads as code page 437."""
    if not entry.flag_bits & 0x800:
        with suppress(UnicodeError):
            return entry.filename.encode("cp437").decode("utf-8")
    return entry.filename


def _walk(root: Path, depth: int) -> Iterator[str]:
    """Visible names below a folder in sorted order: the content of `a/` comes after `a.png`."""
    above = [os.path.realpath(root)]
    levels = [("", _listed(root))]
    while levels:
        prefix, names = levels[-1]
        name = next(names, None)
        if name is None:
            levels.pop()
            above.pop()
        elif not name.endswith("/"):
            yield prefix + name
        elif (real := os.path.realpath(root / prefix / name)) not in above:  # a link may point to a folder above
            if len(levels) > depth:
                raise UserError(f"{root}: folders are nested more than limits.depth={depth} deep; move them up")
            yield prefix + name
            above.append(real)
            levels.append((prefix + name, _listed(root / prefix / name)))


def _listed(folder: Path) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            names = [f"{e.name}/" if e.is_dir() else e.name for e in entries if e.is_dir() or e.is_file()]
    except PermissionError as error:
        raise UserError(f"{error.filename}: permission denied; make it readable") from error
    return iter(sorted(name for name in names if not is_hidden(name)))
