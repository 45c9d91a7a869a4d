"""Names of files: which are pictures, what they consist of, and what a mistyped one may have meant."""

import difflib
from collections.abc import Iterable
from pathlib import Path

EXTENSIONS = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")


def is_image(name: str) -> bool:
    """Whether the name is that of a picture."""
    return name.lower().endswith(EXTENSIONS)


def parts(name: str) -> tuple[str, ...]:
    """The folders and the file of a name inside a folder or zip, also when written with backslashes."""
    return tuple(part for part in name.replace("\\", "/").split("/") if part not in ("", "."))


def is_hidden(name: str) -> bool:
    """Whether the file, or a folder it is in, is one that systems create for themselves."""
    return any(part.startswith(".") or part == "__MACOSX" for part in parts(name))


def close_matches(path: str, known: Iterable[str] = ()) -> str:
    """'did you mean …?' from the known names and the files beside the path; empty if nothing is near."""
    folder = Path(path).parent
    beside = [str(folder / p.name) for p in folder.iterdir()] if folder.is_dir() else []
    near = difflib.get_close_matches(path, [*known, *beside], 3, 0.5)
    return f"did you mean {' or '.join(near)}?" if near else ""
