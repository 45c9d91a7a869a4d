"""Streaming the images of a folder."""

import io
import sys

import numpy as np
import pytest
from PIL import Image

from vcc_infuse.data.images.decode import SHOWN, SkippedImages, image_chunks, open_images


@pytest.fixture
def folder(tmp_path):
    for i in range(7):
        Image.fromarray(np.full((4, 4, 3), 10 * i, np.uint8)).save(tmp_path / f"{i}.png")
    (tmp_path / "3.png").write_bytes(b"damaged")
    return tmp_path


def test_chunks_hold_every_readable_image_in_order(folder):
    skipped = SkippedImages()
    with open_images(str(folder)) as store:
        chunks = list(image_chunks(store, (4, 4, 3), skipped, 3))
    assert [chunk.start for chunk in chunks] == [0, 3, 6]
    assert [name for chunk in chunks for name in chunk.names] == [f"{i}.png" for i in range(7)]
    values = np.concatenate([chunk.x[:, 0, 0, 0] for chunk in chunks])
    assert values.tolist() == [0, 10, 20, 40, 50, 60]
    assert np.concatenate([chunk.start + chunk.rows for chunk in chunks]).tolist() == [0, 1, 2, 4, 5, 6]
    assert skipped.count == 1


@pytest.mark.parametrize("count", [0, 1, SHOWN, SHOWN + 1, 3 * SHOWN])
def test_only_the_first_messages_are_kept(count, capsys):
    skipped = SkippedImages()
    for i in range(count):
        skipped.add(["good", f"{i}.png"], {1: "damaged"})
    assert len(skipped.first) <= SHOWN
    skipped.report()
    lines = capsys.readouterr().err.splitlines()
    assert lines[:SHOWN] == [f"skipped {i}.png: damaged" for i in range(min(count, SHOWN))]
    assert lines[SHOWN:] == ([f"… and {count - SHOWN} more unreadable images"] if count > SHOWN else [])


@pytest.mark.parametrize("terminal", [True, False])
def test_only_a_terminal_sees_a_progress_bar(terminal, folder, monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: terminal)
    monkeypatch.setattr(sys, "stderr", screen)
    with open_images(str(folder)) as store:
        list(image_chunks(store, (4, 4, 3), SkippedImages(), 3))
    assert ("7image" in screen.getvalue()) is terminal
    assert terminal or not screen.getvalue()
