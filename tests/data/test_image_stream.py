"""Images of a folder in a stream."""

import io
import sys

import numpy as np
import pytest
from PIL import Image

from vcc_infuse.data.image_stream import SHOWN, Broken, decoded, open_images


@pytest.fixture
def folder(tmp_path):
    for i in range(7):
        Image.fromarray(np.full((4, 4, 3), 10 * i, np.uint8)).save(tmp_path / f"{i}.png")
    (tmp_path / "3.png").write_bytes(b"rubbish")
    return tmp_path


def test_chunks_hold_every_readable_image_in_order(folder):
    broken = Broken()
    with open_images(str(folder)) as store:
        chunks = list(decoded(store, (4, 4, 3), broken, 3))
    assert [chunk.start for chunk in chunks] == [0, 3, 6]
    assert [name for chunk in chunks for name in chunk.names] == [f"{i}.png" for i in range(7)]
    values = np.concatenate([chunk.x[:, 0, 0, 0] for chunk in chunks])
    assert values.tolist() == [0, 10, 20, 40, 50, 60]
    assert np.concatenate([chunk.start + chunk.rows for chunk in chunks]).tolist() == [0, 1, 2, 4, 5, 6]
    assert broken.count == 1


@pytest.mark.parametrize("count", [0, 1, SHOWN, SHOWN + 1, 3 * SHOWN])
def test_only_the_first_broken_images_are_remembered(count, capsys):
    broken = Broken()
    for i in range(count):
        broken.add(["good", f"{i}.png"], {1: "rubbish"})
    assert len(broken.first) <= SHOWN
    broken.tell()
    lines = capsys.readouterr().err.splitlines()
    assert lines[:SHOWN] == [f"skipped {i}.png: rubbish" for i in range(min(count, SHOWN))]
    assert lines[SHOWN:] == ([f"… and {count - SHOWN} more broken images"] if count > SHOWN else [])


@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_sees_how_many_images_are_done(terminal, folder, monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: terminal)
    monkeypatch.setattr(sys, "stderr", screen)
    with open_images(str(folder)) as store:
        list(decoded(store, (4, 4, 3), Broken(), 3))
    assert ("7image" in screen.getvalue()) is terminal
    assert terminal or not screen.getvalue()
