"""From a folder of photos to a running page."""

from __future__ import annotations

import atexit
import os
import re
import secrets
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import OptionError, UserError, check_integer
from .embedding import Network
from .images import ImagePool, PoolSource
from .outputs import Outputs
from .processes import Background, Processes
from .server import HOSTS, Keys, make_app
from .session import MOST_WRONG, Session

SECRET = ".session"
HAND_OVER = 0.001  # seconds after which a thread that writes files gives way to one that answers a click


@dataclass(frozen=True, kw_only=True)
class LabelOptions:
    """How a labeling session is run.

    Args:
        out: folder of everything that is written; beside the photos if not given.
        label_file: table with labels to begin with.
        network: what embeds the images.
        seed: of everything that is drawn.
        most_wrong: a batch is confirmed as a whole if at most this share of it is wrong, with 95 % confidence.
        label_studio: serve the routes of Label Studio's ML backend.
    """

    out: str | None = None
    label_file: str | None = None
    network: Any = field(default_factory=Network)
    seed: int = 0
    most_wrong: float = MOST_WRONG
    label_studio: bool = False


class LabelServer:
    """A session with its processes and outputs; `app` is the ASGI application.

    Args:
        source: the photos.
        options: see `LabelOptions`.
        background: what computes beside the session; by default two processes.
        on_new_token: told each token that opens the page, after the one before was used.
    """

    def __init__(
        self,
        source: PoolSource,
        options: LabelOptions | None = None,
        *,
        background: Background | None = None,
        on_new_token: Callable[[str], None] = lambda token: None,
    ) -> None:
        self.options = options or LabelOptions()
        self.out = output_folder(source.path, self.options.out)
        pool = ImagePool(source)
        self.background = background or Processes(source, self.options.network, self.out, self.options.seed)
        self.session = Session(
            pool, self.out, submit=self.background.submit, seed=self.options.seed, most_wrong=self.options.most_wrong
        )
        try:
            self.outputs = Outputs(self.session, self.options)
            self.outputs.read_label_file()
        except BaseException:
            self.session.close()
            raise
        self.keys = Keys(_stored_secret(self.out), on_new_token)
        self.app = make_app(self.session, self.keys, export=self.outputs.export, label_studio=self.options.label_studio)

    def start(self) -> None:
        """Start what runs beside the server."""
        self.background.start(self.session.on_progress, self.session.on_answer)
        self.outputs.start()

    def close(self) -> None:
        """Write labels.csv and leave the folder."""
        self.background.close()
        self.outputs.close()
        self.session.close()


def output_folder(path: str, out: str | None) -> Path:
    """Where the session is kept: never among the photos."""
    photos = Path(path).expanduser().resolve()
    folder = Path(out).expanduser().resolve() if out else photos.with_name(f"{photos.stem or 'photos'}-labels")
    if folder == photos or photos in folder.parents:
        raise OptionError("out", str(folder), "must not be inside of the photos", "give a folder beside them")
    if folder.exists() and not folder.is_dir():
        raise OptionError("out", str(folder), "must be a folder", "it is a file")
    return folder


def _stored_secret(out: Path) -> str:
    """The secret of the folder's page, readable by its owner only; a page that is open survives a restart."""
    path = out / SECRET
    with suppress(FileExistsError):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(secrets.token_urlsafe(32))
    path.chmod(0o600)
    text = path.read_text("utf-8", "replace").strip()
    if not re.fullmatch(r"[\w-]{32,64}", text, re.ASCII):  # damaged
        path.unlink()
        return _stored_secret(out)
    return text


def serve(source: PoolSource, options: LabelOptions, *, port: int = 0, browser: bool = True) -> None:
    """Serve the page on the loopback address until Ctrl-C.

    Args:
        source: the photos.
        options: of the session.
        port: 0 takes a free one, the same for the same folder if possible.
        browser: open the page.
    """
    try:
        import uvicorn
    except ImportError as fault:
        raise UserError("the labeling page needs: pip install 'vcc-infuse[label]'") from fault
    listener = _listen(port, output_folder(source.path, options.out))
    address = f"http://{HOSTS[0]}:{listener.getsockname()[1]}"
    server = LabelServer(source, options, on_new_token=lambda token: say(f"another browser: {address}/?token={token}"))
    atexit.register(server.background.close)
    say(f"{len(server.session.pool):,} images; everything is kept in {server.out}")
    if options.label_studio:
        say(f"ML backend for Label Studio: {address} (token or password: {server.keys.studio_token})")
    url = f"{address}/?token={server.keys.token}"
    say(f"open {url}\nCtrl-C ends it; nothing is lost")
    if browser:
        threading.Timer(0.5, webbrowser.open, [url]).start()
    server.start()
    sys.setswitchinterval(HAND_OVER)
    config = uvicorn.Config(
        server.app, log_level="warning", access_log=False, timeout_graceful_shutdown=1, server_header=False
    )
    try:
        with suppress(KeyboardInterrupt):
            uvicorn.Server(config).run([listener])
    finally:
        server.close()
    say(f"labels are in {server.out / 'labels.csv'}")


def say(text: str) -> None:
    """A line for the terminal."""
    print(text, file=sys.stderr, flush=True)


def _listen(port: int, folder: Path) -> socket.socket:
    """A socket on the loopback address. A page that is open finds a server that was started again on its port."""
    check_integer("port", port, 0, 65_535)
    usual = 20_000 + sum(str(folder).encode()) % 20_000
    for number in (port,) if port else (usual, 0):
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOSTS[0], number))
            listener.listen()  # a browser that is too early waits
        except OSError as fault:
            listener.close()
            if number == port:
                raise OptionError("port", port, "must be a free port", f"it is in use ({fault.strerror})") from fault
            continue
        return listener
    raise UserError("no free port was found")
