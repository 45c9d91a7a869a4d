"""What the decoder makes of a folder, zip or file, without classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from vcc_infuse.data.images.decode import Size, check_options
from vcc_infuse.data.images.store import open_store
from vcc_infuse.data.sources.folder import read_groups


def read_images(
    path: str | Path, size: Size = None, mode: str = "auto", intensity: str = "auto"
) -> tuple[np.ndarray, list[str], list[tuple[str, str]]]:
    """All images, of any class: uint8 N×H×W×C array, names, skipped files with reasons."""
    check_options(size, mode, intensity)
    with open_store(Path(path)) as store:
        groups = {"all": [(name, None) for name in store.images()]}
        options = (size, mode, intensity)
        read = read_groups(store, groups, str(path), options, lambda _, shape: np.empty(shape, np.uint8))
    return read.arrays["all"], [name for name, _ in read.groups["all"]], read.skipped
