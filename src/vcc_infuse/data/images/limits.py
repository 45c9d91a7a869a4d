"""How much one file of a user's may cost: a small file can unpack to more than the memory holds."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import UserError
from ...validation import check_integer

MEGABYTE = 2**20


@dataclass(frozen=True)
class Limits:
    """What is read of somebody's images. A larger image is skipped and listed; deeper folders are an error.

    Args:
        image_mb: megabytes that the pixels of an image may take; Pillow itself refuses more than 179 million pixels.
        file_mb: megabytes of a file, or of an entry of a zip when it is unpacked.
        depth: how many folders may be nested.
    """

    image_mb: int = 256
    file_mb: int = 256
    depth: int = 100

    def __post_init__(self) -> None:
        check_integer("image_mb", self.image_mb)
        check_integer("file_mb", self.file_mb)
        check_integer("depth", self.depth)

    def check_file(self, size: int) -> None:
        """Refuse a file by its size, before it is read."""
        _check("the file", size, self.file_mb, "file_mb")

    def check_pixels(self, size: int) -> None:
        """Refuse an image by the size in its header, before it is decoded."""
        _check("the image", size, self.image_mb, "image_mb")


def _check(what: str, size: int, most: int, option: str) -> None:
    if size > most * MEGABYTE:
        raise UserError(f"{what} takes {size / MEGABYTE:,.0f} MB, and limits.{option} is {most}")
