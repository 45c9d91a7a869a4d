"""The real server of the labeling page in a thread, on drawn photos and with a network that costs nothing."""

import json
import socket
import threading
from pathlib import Path

import numpy as np
import uvicorn
from PIL import Image, ImageDraw

from vcc_infuse.label.embedding import embed_pool
from vcc_infuse.label.images import ImagePool, PoolSource
from vcc_infuse.label.launch import LabelOptions, LabelServer
from vcc_infuse.label.worker import Learner

SHAPES = {"circle": (220, 70, 60), "square": (60, 170, 90), "triangle": (70, 110, 220)}


def draw_photos(folder, *, count):
    """Shapes of three colors on a gray ground; the file names say which."""
    rng = np.random.default_rng(0)
    for number in range(count):
        shape = list(SHAPES)[number % len(SHAPES)]
        image = Image.new("RGB", (96, 72), tuple(int(value) for value in rng.integers(90, 140, 3)))
        x, y, r = (int(value) for value in rng.integers((30, 26, 12), (66, 46, 22)))
        pen = ImageDraw.Draw(image)
        color = tuple(int(value) for value in np.clip(np.array(SHAPES[shape]) + rng.integers(-30, 30, 3), 0, 255))
        corners = {"circle": 24, "square": 4, "triangle": 3}[shape]
        pen.regular_polygon((x, y, r), corners, rotation=int(rng.integers(0, 20)), fill=color)
        folder.mkdir(parents=True, exist_ok=True)
        image.save(folder / f"{number:03d}-{shape}.png")
    return folder


class MeanColors:
    """In place of a network: colors of a few parts of the image."""

    key = b"mean colors     "

    def load(self, images):
        def embed(pixels):
            parts = pixels.reshape(len(pixels), 4, 4, 4, 4, 3).mean((2, 4)).reshape(len(pixels), -1)
            return ((parts - 115) / 60).astype(np.float16)

        return 16, embed


class InThread:
    """In place of two processes: one thread that embeds and answers with the quick head, newest job first."""

    def __init__(self, source, out):
        self._source = source
        self._out = out
        self._job = None
        self._asked = threading.Condition()
        self._closed = False

    def start(self, on_progress, on_answer):
        self._thread = threading.Thread(target=self._work, args=(on_progress, on_answer), daemon=True)
        self._thread.start()

    def _work(self, on_progress, on_answer):
        embed_pool(self._source, MeanColors(), self._out, 0, on_progress)
        learner = Learner(self._out, ImagePool(self._source).keys)
        while True:
            with self._asked:
                self._asked.wait_for(lambda: self._job is not None or self._closed)
                job = self._job
                self._job = None
            if self._closed:
                return
            on_answer(learner.quick(job))

    def submit(self, job):
        with self._asked:
            self._job = job
            self._asked.notify()

    def close(self):
        with self._asked:
            self._closed = True
            self._asked.notify()
        self._thread.join(10)


class Serving:
    """A server that can be stopped hard and started again on the same folder and port."""

    def __init__(self, photos: Path, out: Path):
        self.source = PoolSource(str(photos))
        self.out = out
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.truth = dict(enumerate(name.rsplit("-", 1)[1].split(".")[0] for name in ImagePool(self.source).names))

    def start(self):
        self.out.mkdir(parents=True, exist_ok=True)
        self.label_server = LabelServer(
            self.source, LabelOptions(out=str(self.out)), background=InThread(self.source, self.out)
        )
        config = uvicorn.Config(self.label_server.app, port=self.port, log_level="error", timeout_graceful_shutdown=0)
        self._uvicorn = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._uvicorn.run, daemon=True)
        self.label_server.start()
        self._thread.start()
        while not self._uvicorn.started:
            self._thread.join(0.01)
        self.address = f"http://127.0.0.1:{self.port}/?token={self.label_server.keys.token}"

    def stop(self):
        if self._thread.is_alive():
            self._uvicorn.force_exit = True
            self._uvicorn.should_exit = True
            self._thread.join(10)
            self.label_server.close()

    @property
    def session(self):
        return self.label_server.session

    def state(self):
        return self.session.state_json()

    def labels(self):
        """Class name per image, of every label, as the server has it."""
        state = self.session.state
        return {int(i): state.classes[int(state.label[i])].name for i in np.flatnonzero(state.label >= 0)}

    def class_id(self, name):
        return next(item["id"] for item in self.state()["classes"] if item["name"] == name)

    def journal(self, action=None):
        """Lines on disk, with the numbers of images in place of their names."""
        lines = [json.loads(line) for line in (self.out / "journal.jsonl").read_text().splitlines()][1:]
        return [self.session._with_numbers(line) for line in lines if action in (None, line["action"])]
