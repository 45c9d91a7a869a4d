"""The images of a labeling session: known by their number, read within limits, and shown only re-encoded."""

from __future__ import annotations

import hashlib
import io
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from PIL import Image

from ..data.images.decode import BROKEN, Header, fit
from ..data.images.high_bit_depth import Deep, open_image
from ..data.images.store import FolderStore, Limits, Store, is_image, open_store
from ..errors import UserError
from .thumbnails import KEY

THUMBNAIL = 192  # pixels of the longer side
LARGE = 1280
SHOWN_LIMITS = Limits(image_mb=512)


class Unreadable(Exception):  # noqa: N818 - a finding about a file, not a fault of the program
    """Why an image cannot be shown."""


@dataclass(frozen=True)
class PoolSource:
    """Where the images are, in a form that another process can open.

    Args:
        path: a folder, a zip or an image.
        limits: the largest files and images that are read.
        follow_links: read files that links in the folder point to outside of it.
    """

    path: str
    limits: Limits | None = None
    follow_links: bool = False


class ImagePool:
    """The images of a folder or zip in the order of their names; an image is known by its place in it."""

    def __init__(self, source: PoolSource) -> None:
        self.source = source
        self.store: Store = open_store(Path(source.path), source.limits or SHOWN_LIMITS)
        self.names = [name for name in self.store.stamps if is_image(name)]
        if not self.names:
            raise UserError(f"{source.path} holds no images; give another folder or zip")
        self._root = ""
        if isinstance(self.store, FolderStore) and not source.follow_links:
            self._root = os.path.join(os.path.realpath(self.store.root), "")

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def number(self) -> dict[str, int]:
        """The number of each name."""
        return {name: number for number, name in enumerate(self.names)}

    @cached_property
    def keys(self) -> np.ndarray:
        """What thumbnails and features are stored under: it changes with the name and the content of a file."""
        texts = (f"{name}\0{self.store.stamps[name]}".encode("utf-8", "surrogateescape") for name in self.names)
        digests = b"".join(hashlib.blake2b(text, digest_size=16).digest() for text in texts)
        return np.frombuffer(digests, KEY)

    def open(self, image: int) -> Image.Image | Deep:
        """The opened image; Unreadable if it is damaged, too large, or a link that leads out of the folder."""
        name = self.names[image]
        try:
            if self._root and not os.path.realpath(os.path.join(self._root, name)).startswith(self._root):
                raise Unreadable("a link that leads out of the folder; --follow-links reads it")
            with self.store.open(name) as file:
                return open_image(io.BytesIO(file.read()), self.store.limits)
        except BROKEN as fault:
            raise Unreadable(" ".join(str(fault).split())[:200] or type(fault).__name__) from fault

    def webp(self, image: int, side: int = THUMBNAIL) -> bytes:
        """A thumbnail."""
        return encoded(_shown(self.open(image), side), "WEBP")

    def jpeg(self, image: int, side: int = LARGE) -> bytes:
        """A large version, without whatever else the file held."""
        return encoded(_shown(self.open(image), side), "JPEG")

    def decoded(self, image: int, side: int) -> tuple[np.ndarray, bytes]:
        """The image as a network sees it, uint8 of shape (side, side, 3), and its thumbnail, decoded once."""
        opened = self.open(image)
        shape = _shape(opened, THUMBNAIL)
        pixels = _fitted(opened, (side, side, 3))
        return pixels, encoded(_fitted(opened, shape), "WEBP")


def _shape(image: Image.Image | Deep, side: int) -> tuple[int, int, int]:
    """Height, width and channels of a smaller version."""
    height, width = Header.of(image).size
    scale = min(1.0, side / max(height, width))
    return max(1, round(height * scale)), max(1, round(width * scale)), 3


def _shown(image: Image.Image | Deep, side: int) -> np.ndarray:
    return _fitted(image, _shape(image, side))


def _fitted(image: Image.Image | Deep, shape: tuple[int, int, int]) -> np.ndarray:
    try:
        return fit(image, shape)
    except BROKEN as fault:
        raise Unreadable(" ".join(str(fault).split())[:200] or type(fault).__name__) from fault


def encoded(pixels: np.ndarray, kind: str) -> bytes:
    """Pixels as a file without metadata."""
    content = io.BytesIO()
    options = {"method": 2} if kind == "WEBP" else {}
    Image.fromarray(pixels).save(content, kind, quality=80, **options)
    return content.getvalue()
