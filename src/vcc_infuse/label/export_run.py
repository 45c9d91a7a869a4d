"""A run folder from a labeling session, at any moment: what `train` makes of the views that the session has embedded.

Nothing is decoded or embedded again.
"""

from __future__ import annotations

import json
import multiprocessing
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..errors import UserError
from ..utils.io import write_text
from .embedding import FEATURES, FeatureRows, Network
from .images import ImagePool, PoolSource
from .processes import settle
from .session import Session

if TYPE_CHECKING:
    from ..data.ssl_data import SSLData
    from .launch import LabelOptions

VALIDATION = 0.2  # of the labels, as of `train`


class Request(NamedTuple):
    """What the process that trains a run needs to know.

    Attributes:
        source: of the images.
        network: that has embedded them.
        features: the file that holds what it said.
        labels: class numbers, of shape (images,), −1 where there is none.
        groups: of near copies, of shape (images,); all different where there are none.
        classes: names of the classes.
        options: of `train`.
    """

    source: PoolSource
    network: Network
    features: Path
    labels: np.ndarray
    groups: np.ndarray
    classes: tuple[str, ...]
    options: dict[str, Any]


def train_run(session: Session, options: LabelOptions, out: Path) -> tuple[list[str], str]:
    """Train on the labels and return the names of the new folder's main files, and what kind of a run it is."""
    folder = _free_folder(out)
    request = _request(session, options, out, folder)
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    child = context.Process(target=_answer, args=(there, request), daemon=True)  # a server that ends takes it along
    child.start()
    there.close()
    fault = "its process was ended"
    with suppress(EOFError):
        fault = here.recv()
    child.join()
    if fault:
        raise UserError(f"the run was not trained: {fault}")
    again = f"vcc-infuse train --config {folder / 'config.yaml'} --out {folder}-2"
    files = [f"{folder.name}/{name}" for name in ("model.safetensors", "summary.json", "report.html")]
    return files, f"the method of train on the views that are embedded already; again: {again}"


def _request(session: Session, options: LabelOptions, out: Path, folder: Path) -> Request:
    with session.lock:
        state = session.state
        label = state.label.copy()
        names = {number: item.name for number, item in state.classes.items()}
        groups = np.where(session.copies >= 0, session.copies, np.arange(len(label)))
        known = label >= 0
    used = sorted(set(label[known].tolist()), key=lambda number: names[number])
    if len(used) < 2:
        raise UserError("a run needs labels of two classes; label some more")
    table = out / f"{folder.name}-labels.jsonl"
    rows = [{"file": session.pool.names[image], "label": names[int(label[image])]} for image in np.flatnonzero(known)]
    write_text(table, "".join(json.dumps(row) + "\n" for row in rows))
    network = options.network
    model = {"name": network.name, "weights": network.weights, "input_size": network.input_size}
    words = {
        "data": session.pool.source.path, "label_file": str(table), "preset": "frozen", "out": str(folder),
        "model": {"class_path": "vcc_infuse.Timm", "init_args": model}, "device": network.device,
        "engine": network.engine, "progress": False,
    }  # fmt: skip
    number = np.full(max(used) + 2, -1)
    number[used] = np.arange(len(used))
    columns = np.where(known, number[label], -1)
    classes = tuple(names[cls] for cls in used)
    return Request(session.pool.source, network, out / FEATURES, columns, groups, classes, words)


def _answer(connection: Connection, request: Request) -> None:
    """Train, and send what went wrong; an empty text if nothing did."""
    settle()
    try:
        _train(request)
        connection.send("")
    except UserError as fault:
        connection.send(" ".join(str(fault).split()))


def _train(request: Request) -> None:
    from ..bank.embed import head
    from ..run_config import RunConfig, resolve
    from ..training.trainer import Trainer

    config = resolve(RunConfig.from_options(request.options), "frozen")
    algorithm, calibrator = (config.build(name) for name in ("algorithm", "calibrator"))
    trainer = Trainer(head(config.bank), algorithm, calibrator, config=config.train_config())
    trainer.fit(_data(request), config=config.to_yaml())
    trainer.close()


def _data(request: Request) -> SSLData:
    """The embedded images, with the network that has embedded them."""
    from ..bank.bank import Bank
    from ..data.split import from_given_labels
    from ..data.ssl_data import SSLData

    pool = ImagePool(request.source)
    stored = FeatureRows(request.features, pool.keys)
    stored.refresh()
    order = np.argsort(stored.images)
    images = stored.images[order]
    labels = request.labels[images]
    used = np.unique(labels[labels >= 0])
    if len(used) < 2:
        raise UserError("the photos of two classes are not read yet; try again in a moment")
    classes = tuple(request.classes[number] for number in used)
    labels = np.where(labels >= 0, np.searchsorted(used, labels), -1)
    side, encoder, views = request.network.frozen()
    data = Bank.of_views(
        stored.features[order, None], labels, [pool.names[image] for image in images], classes, encoder=encoder,
        views=views, shape=(side, side, 3), recipe=request.network.key.hex(), name=Path(request.source.path).stem,
        groups=np.unique(request.groups[images], return_inverse=True)[1],
    )  # fmt: skip
    return SSLData(data, from_given_labels(labels)).with_validation(VALIDATION)


def _free_folder(out: Path) -> Path:
    """run, or run-DATE if there is one already: results are never overwritten."""
    folder = out / "run"
    return folder if not folder.exists() else out / time.strftime("run-%Y%m%d-%H%M%S")
