"""Record docs/label-session.webp and the pictures of docs/label.md: a simulated person labels the images of the demo.

Everything is real but the person, who knows the answers: `vcc-infuse label` with its network, Chromium, keys only.
Run: python tools/record_label.py docs
"""

from __future__ import annotations

import io
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from label_drawn_images import draw_photos
from vcc_infuse.label import PoolSource
from vcc_infuse.label.images import ImagePool

SCREEN = {"width": 1280, "height": 800}
PHONE = {"width": 360, "height": 740}
FRAME = (800, 500)
SINGLES = 34
GRIDS = 6
SHOWN = "document.querySelector('#frame:not(.loading) img')?.alt.split(' ').at(-1)"
SAVED = "document.documentElement.dataset.waiting === '0'"
LEARNED = "document.getElementById('model').textContent.startsWith('Model of') && \
  !document.getElementById('model').classList.contains('busy')"
TILES = "[...document.querySelectorAll('.tile:not(.done)')].map((tile) => Number(tile.dataset.id))"
CLASS = "document.getElementById('grid-class').selectedOptions[0].textContent"


class Recording:
    """A page, the truth, and the frames so far."""

    def __init__(self, page: Any, truth: list[str], out: Path) -> None:
        self.page = page
        self.truth = truth
        self.out = out
        self.frames: list[tuple[Image.Image, int]] = []
        self.keys: dict[str, str] = {}

    def keep(self, milliseconds: int) -> None:
        """One frame, and how long it is shown."""
        picture = Image.open(io.BytesIO(self.page.screenshot())).convert("RGB")
        self.frames.append((picture.resize(FRAME, Image.Resampling.LANCZOS), milliseconds))

    def picture(self, name: str) -> None:
        """A picture for the docs."""
        shot = Image.open(io.BytesIO(self.page.screenshot())).convert("RGB")
        if shot.width == SCREEN["width"]:
            shot = shot.resize((1000, 625), Image.Resampling.LANCZOS)
        shot.quantize(256, dither=Image.Dither.NONE).save(self.out / name, optimize=True)

    def until(self, script: str, seconds: float = 900.0) -> Any:
        """Wait for something to become true."""
        end = time.monotonic() + seconds
        while not (value := self.page.evaluate(script)):
            if time.monotonic() > end:
                raise TimeoutError(script)
            self.page.wait_for_timeout(30)
        return value

    def press(self, key: str) -> None:
        """A key."""
        self.page.keyboard.press(key)

    def name_first(self, name: str) -> None:
        """Type the name of a new class."""
        if self.keys:
            self.press("n")
        self.page.keyboard.type(name)
        self.keep(700)
        self.press("Enter")
        self.keys[name] = str(len(self.keys) + 1)

    def single(self) -> None:
        """One image: name it, accept the suggestion or press the key of its class."""
        name = self.truth[int(self.until(SHOWN))]
        guess = self.page.evaluate("document.querySelector('.guess')?.textContent")
        audit = self.page.evaluate("document.querySelector('#one-view.audit') !== null")
        self.keep(1600 if audit else 350)
        if name not in self.keys:
            self.name_first(name)
        else:
            self.press("Enter" if guess == name else self.keys[name])

    def tiles(self) -> list[int]:
        """The tiles of a grid; of the next class where everything has been judged."""
        for _ in range(2 * len(self.keys)):
            self.page.wait_for_timeout(700)
            if found := self.page.evaluate(TILES):
                return list(found)
            self.press("PageDown")
        raise TimeoutError("no class has tiles")

    def grid(self) -> None:
        """Mark what is wrong, confirm the rest."""
        tiles = self.tiles()
        name = self.page.evaluate(CLASS).rsplit(" (", 1)[0]
        self.keep(1000)
        self.press("ArrowRight")
        for image in tiles:
            if self.truth[image] != name:
                self.press(self.keys[self.truth[image]])
                self.keep(500)
            self.press("ArrowRight")
        self.press("Enter")
        self.until(SAVED)
        self.page.wait_for_timeout(400)
        self.keep(1000)

    def save(self) -> None:
        """The animation."""
        pictures, durations = zip(*self.frames, strict=True)
        path = self.out / "label-session.webp"
        pictures[0].save(
            path, save_all=True, append_images=pictures[1:], duration=list(durations), loop=0, quality=60, method=4
        )
        print(f"{path}: {len(pictures)} frames, {sum(durations) / 1000:.0f} s, {path.stat().st_size / 1e6:.2f} MB")


def record(page: Any, truth: list[str], out: Path) -> None:
    """The whole session."""
    recording = Recording(page, truth, out)
    recording.until(SHOWN)
    recording.keep(1500)
    for number in range(SINGLES):
        recording.single()
        if number in (9, 20):
            recording.until(SAVED)
            recording.until(LEARNED)
    recording.until("document.querySelector('.guess') !== null")
    recording.picture("label.png")
    recording.press("Shift+G")
    recording.tiles()
    recording.picture("label-grid.png")
    page.set_viewport_size(PHONE)
    recording.tiles()
    recording.picture("label-phone.png")
    page.set_viewport_size(SCREEN)
    for number in range(GRIDS):
        if number == 2:
            page.locator("[data-purpose=confirm]").click()
        recording.grid()
        recording.press("PageDown")
    recording.press("Shift+I")
    recording.until(SHOWN)
    recording.keep(2500)
    recording.save()


def main(out: Path) -> None:
    """Draw the images, start the server and record."""
    with tempfile.TemporaryDirectory() as folder:
        photos = Path(folder) / "holiday"
        truth = draw_photos(photos)
        assert ImagePool(PoolSource(str(photos))).names == sorted(path.name for path in photos.iterdir())
        command = [sys.executable, "-m", "vcc_infuse", "label", str(photos), "--no-browser"]
        server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            assert server.stderr is not None
            address = next(found[1] for line in server.stderr if (found := re.search(r"open (http\S+)", line)))
            with sync_playwright() as driver:
                browser = driver.chromium.launch(
                    executable_path="/usr/bin/chromium", args=["--no-sandbox", "--disable-gpu"]
                )
                page = browser.new_page(viewport=SCREEN, reduced_motion="reduce", color_scheme="light")
                page.goto(address)
                page.wait_for_selector("html[data-ready]", state="attached")
                record(page, truth, out)
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(60)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
