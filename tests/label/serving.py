"""The real server of the labeling page on a real port, on drawn photos; the model learns when a test says so."""

import json
import socket
import threading

import numpy as np
import uvicorn

from tests.label.fakes import COLORS, FakeNetwork, Inline, truth
from vcc_infuse.label import LabelOptions, LabelServer, PoolSource


class OnDemand(Inline):
    """Keeps the jobs until it is told to answer the newest one."""

    def submit(self, job):
        self.jobs.append(job)

    def learn(self):
        self.on_answer(self.learner.quick(self.jobs[-1]))


class Serving:
    """A server that can be stopped hard and started again on the same folder and port."""

    def __init__(self, photos, out):
        self.source = PoolSource(str(photos))
        self.out = out
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]

    def start(self):
        self.background = OnDemand(self.source, self.out)
        options = LabelOptions(out=str(self.out), network=FakeNetwork())
        self.server = LabelServer(self.source, options, background=self.background)
        self.background.start(self.session.on_progress, self.session.on_answer)
        config = uvicorn.Config(self.server.app, port=self.port, log_level="critical", timeout_graceful_shutdown=0)
        self._uvicorn = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._uvicorn.run, daemon=True)
        self._thread.start()
        while not self._uvicorn.started and self._thread.is_alive():
            self._thread.join(0.01)
        self.address = f"http://127.0.0.1:{self.port}/?token={self.server.keys.token}"

    def stop(self):
        if self._thread.is_alive():
            self._uvicorn.force_exit = True
            self._uvicorn.should_exit = True
            self._thread.join(10)
            self.session.close()

    @property
    def session(self):
        return self.server.session

    def truth(self, image):
        return truth(self.server, image)

    def prepare(self, count):
        """Label images before the page is opened, and let the model learn."""
        for number, name in enumerate(COLORS, 1):
            self.session.act({"action": "new_class", "name": name, "key": str(number)})
        for _ in range(count):
            [item] = self.session.next(1, [])["items"]
            self.label(item["id"], audit=item["audit"])
        self.background.learn()

    def label(self, image, **fields):
        self.session.act({"action": "label", "image": image, "class": self.class_id(self.truth(image)), **fields})

    def labels(self):
        """Class name per image, of every label that the server has."""
        state = self.session.state
        return {int(i): state.classes[int(state.label[i])].name for i in np.flatnonzero(state.label >= 0)}

    def class_id(self, name):
        return next(number for number, item in self.session.state.open_classes().items() if item.name == name)

    def journal(self, action=None):
        """The lines on disk, without the first; images by their names."""
        lines = [json.loads(line) for line in (self.out / "journal.jsonl").read_text().splitlines()][1:]
        return [line for line in lines if action in (None, line["action"])]

    def names(self, images):
        return [self.session.pool.names[image] for image in images]
