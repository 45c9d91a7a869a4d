"""A session without a network and without processes: tiny drawn images, features that are their colors."""

import hashlib
from pathlib import Path

import numpy as np
from PIL import Image
from starlette.testclient import TestClient

from vcc_infuse.label import LabelOptions, LabelServer, PoolSource
from vcc_infuse.label.embedding import embed_pool
from vcc_infuse.label.worker import Learner

COLORS = {"red": (200, 30, 30), "green": (30, 200, 30), "blue": (30, 30, 200)}
BASE = "http://127.0.0.1:8123"


class FakeNetwork:
    """Features are the colors of a few pixels."""

    key = hashlib.blake2b(b"fake", digest_size=16).digest()
    name = "fake"

    def load(self, images):
        return 8, lambda pixels: pixels.reshape(len(pixels), -1)[:, ::5].astype(np.float16) / 64


class Inline:
    """Everything at once, in the same thread."""

    def __init__(self, source, out, network=None):
        self.source = source
        self.out = Path(out)
        self.network = network or FakeNetwork()
        self.learner = None
        self.full = False
        self.jobs = []
        self.busy = False  # then jobs wait, as they do while a process trains

    def start(self, on_progress, on_answer):
        self.on_answer = on_answer
        embed_pool(self.source, self.network, self.out, 0, lambda progress: self._progress(on_progress, progress))
        if copies := self.learner and self.learner.copies():
            from vcc_infuse.label.jobs import Answer

            on_answer(Answer(-1, "copies", copies=copies))

    def _progress(self, on_progress, progress):
        if self.learner is None:
            from vcc_infuse.label.images import ImagePool

            self.learner = Learner(self.out, ImagePool(self.source).keys)
        on_progress(progress)

    def submit(self, job):
        self.jobs.append(job)
        if self.busy:
            return
        self.on_answer(self.learner.quick(job))
        if self.full and job.full and (answer := self.learner.full(job, lambda: None)):
            self.on_answer(answer)

    def close(self):
        pass


class Idle:
    """Nothing is computed."""

    def start(self, on_progress, on_answer):
        pass

    def submit(self, job):
        pass

    def close(self):
        pass


def draw(folder, count=30, seed=0, size=(12, 10)):
    """`count` images of noise around three colors, in turn."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        name = list(COLORS)[number % 3]
        pixels = np.clip(np.array(COLORS[name]) + rng.normal(0, 25, (*size, 3)), 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:04d}-{name}.png")
    return folder


def truth(server, image):
    return server.session.pool.names[image].removesuffix(".png").split("-")[1]


def open_server(photos, out, *, background=None, start=True, **options):
    """A server with everything inline, and a client that has the cookie."""
    source = PoolSource(str(photos), follow_links=options.pop("follow_links", False))
    options = {"network": FakeNetwork(), **options}
    server = LabelServer(source, LabelOptions(out=str(out), **options), background=background or Inline(source, out))
    if start:
        server.background.start(server.session.on_progress, server.session.on_answer)
    client = TestClient(server.app, base_url=BASE, headers={"origin": BASE})
    assert client.get(f"/?token={server.keys.token}", follow_redirects=False).status_code == 303
    return server, client


def act(client, action, **fields):
    response = client.post("/api/act", json={"action": action, **fields})
    assert response.status_code == 200, response.text
    return response.json()["state"]


def teach(server, client, count=12):
    """Label images as a person who sees their color; returns the class numbers by name."""
    numbers = {}
    server.background.busy = True
    for _ in range(count):
        item = client.get("/api/next?count=1").json()["items"][0]
        name = truth(server, item["id"])
        if name not in numbers:
            act(client, "new_class", name=name)
            numbers = {c["name"]: c["id"] for c in client.get("/api/state").json()["classes"]}
        act(client, "label", image=item["id"], **{"class": numbers[name]}, audit=item["audit"], seconds=2)
    server.background.busy = False
    server.session.ask()
    return numbers
