"""The server of the labeling page: routes in JSON, and what keeps other people and other pages out.

It listens on the loopback address only. Who opens the address with the token gets a cookie that no script and no other
site can use. Hosts are checked against DNS rebinding, the origin of every POST against other pages, and images are
named by numbers, never by paths.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import re
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ..errors import UserError
from .images import Unreadable
from .session import Session

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

PAGE = Path(__file__).parent / "page"
HOSTS = ("127.0.0.1", "localhost")
LARGEST_BODY = 2**20
MOST_ITEMS = 200
EVENT_SECONDS = 0.5
KEEP_ALIVE = 15.0
YEAR = 31_536_000
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
HEADERS = {
    "content-security-policy": "default-src 'self'; img-src 'self' blob: data:; object-src 'none'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
WELCOME = "Open the address that `vcc-infuse label` shows in the terminal; it holds the key to this page.\n"
Handler = Callable[["Request"], Awaitable["Response"]]


class Refused(Exception):  # noqa: N818 - an answer, not a fault
    """A request that is answered with a status and one line."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Keys:
    """The secret that the cookie holds, and the token that it is exchanged for once.

    Args:
        secret: of an earlier server on the same folder, so that a page that is open there stays valid.
        on_new_token: told each new token: the one before was used.
    """

    def __init__(self, secret: str | None = None, on_new_token: Callable[[str], None] = lambda token: None) -> None:
        self.secret = secret or secrets.token_urlsafe(32)
        self.token = secrets.token_urlsafe(32)
        self._tell = on_new_token
        # Another one, because programs store it; it stays the same for the same secret.
        self.studio_token = hashlib.blake2b(b"label-studio", key=self.secret.encode(), digest_size=20).hexdigest()

    def exchange(self, token: str) -> bool:
        """Whether the token is the right one; then it is used up."""
        if not secrets.compare_digest(token.encode(), self.token.encode()):
            return False
        self.token = secrets.token_urlsafe(32)
        self._tell(self.token)
        return True

    def fits(self, cookie: str | None) -> bool:
        """Whether a cookie holds the secret."""
        return cookie is not None and secrets.compare_digest(cookie.encode(), self.secret.encode())


def make_app(
    session: Session, keys: Keys, *, export: Callable[[str], dict[str, Any]] | None = None, label_studio: bool = False
) -> Starlette:
    """The ASGI application.

    Args:
        session: what it answers from.
        keys: who may come in.
        export: writes files in a format and returns their names, with a note.
        label_studio: serve the routes of Label Studio's ML backend, too.
    """
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.routing import Route

    routes = Routes(session, keys, export)
    guarded = [Route(path, routes.guarded(handler), methods=[method]) for path, method, handler in routes.table()]
    open_routes = [Route("/", routes.open(routes.index)), Route("/page/{name}", routes.open(routes.static))]
    studio: list[Any] = []
    if label_studio:
        from .label_studio import ml_backend_routes

        studio = ml_backend_routes(session, keys, routes.open)
    return Starlette(
        routes=[*open_routes, *guarded, *studio],
        middleware=[
            Middleware(SafeHeaders),
            Middleware(TrustedHostMiddleware, allowed_hosts=list(HOSTS), www_redirect=False),
        ],
        exception_handlers={404: _as_json, 405: _as_json},
    )


class SafeHeaders:
    """Adds the headers of safety to every answer."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request."""

        async def with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                before = {name.lower() for name, _ in message["headers"]}
                extra = {**HEADERS, "cache-control": "no-store"}
                message["headers"] = [
                    *message["headers"],
                    *((n.encode(), v.encode()) for n, v in extra.items() if n.encode() not in before),
                ]
            await send(message)

        await self.app(scope, receive, with_headers if scope["type"] == "http" else send)


async def _as_json(request: Request, fault: Exception) -> Response:
    from starlette.exceptions import HTTPException

    status = fault.status_code if isinstance(fault, HTTPException) else 404
    return answer({"error": "there is no such address" if status == 404 else "the method is not allowed"}, status)


def answer(value: Any, status: int = 200) -> Response:
    """JSON; texts with odd characters become escapes."""
    from starlette.responses import Response

    return Response(json.dumps(value), status, media_type="application/json")


class Routes:
    """The handlers."""

    def __init__(self, session: Session, keys: Keys, export: Callable[[str], dict[str, Any]] | None) -> None:
        self.session = session
        self.keys = keys
        self.export_files = export

    def table(self) -> list[tuple[str, str, Handler]]:
        """Path, method and handler of everything that needs the cookie."""
        return [
            ("/thumb/{image}", "GET", self.thumb), ("/image/{image}", "GET", self.image),
            ("/api/state", "GET", self.state), ("/api/events", "GET", self.events), ("/api/next", "GET", self.next),
            ("/api/grid", "GET", self.grid), ("/api/clean", "GET", self.clean), ("/api/class/{cls}", "GET", self.cls),
            ("/api/act", "POST", self.act), ("/api/export", "POST", self.export),
        ]  # fmt: skip

    def open(self, handler: Handler) -> Handler:
        """A handler whose refusals become answers."""

        async def handle(request: Request) -> Response:
            try:
                return await handler(request)
            except Refused as refused:
                return answer({"error": str(refused)}, refused.status)
            except UserError as fault:
                return answer({"error": " ".join(str(fault).split())}, 400)
            except OSError as fault:
                full = fault.errno in (errno.ENOSPC, errno.EDQUOT)
                text = "the disk is full: nothing was changed; free some space and try again" if full else str(fault)
                return answer({"error": text}, 507 if full else 500)

        return handle

    def guarded(self, handler: Handler) -> Handler:
        """A handler for those who have the cookie; a POST must be JSON of our own page."""

        async def handle(request: Request) -> Response:
            if not self.keys.fits(request.cookies.get(cookie_name(request))):
                raise Refused(401, "the page is not open to you; use the address in the terminal")
            if request.method == "POST":
                check_post(request)
            return await handler(request)

        return self.open(handle)

    async def index(self, request: Request) -> Response:
        """The page, or the exchange of a token for the cookie."""
        from starlette.responses import PlainTextResponse, RedirectResponse

        token = request.query_params.get("token")
        if token is not None:
            if not self.keys.exchange(token) and not self.keys.fits(request.cookies.get(cookie_name(request))):
                return PlainTextResponse(WELCOME, 401)
            redirect = RedirectResponse("/", 303)
            redirect.set_cookie(
                cookie_name(request), self.keys.secret, max_age=YEAR, httponly=True, samesite="strict", path="/"
            )
            return redirect
        if not self.keys.fits(request.cookies.get(cookie_name(request))):
            return PlainTextResponse(WELCOME, 401)
        return self._file("index.html")

    async def static(self, request: Request) -> Response:
        """A file of the page."""
        return self._file(request.path_params["name"])

    def _file(self, name: str) -> Response:
        from starlette.responses import Response

        path = PAGE / name
        kind = TYPES.get(path.suffix)
        if not re.fullmatch(r"[a-z0-9_-]+\.[a-z]+", name) or kind is None or not path.is_file():
            raise Refused(404, "there is no such file")
        return Response(path.read_bytes(), media_type=kind, headers={"cache-control": "no-cache"})

    async def thumb(self, request: Request) -> Response:
        """A thumbnail, made now if it is not written yet."""
        image = self._number(request.path_params["image"])
        stored = self.session.thumbnails.get(image)
        content = stored or await self._made(self.session.pool.webp, image)
        return self._picture(content, "image/webp")

    async def image(self, request: Request) -> Response:
        """A large version."""
        image = self._number(request.path_params["image"])
        return self._picture(await self._made(self.session.pool.jpeg, image), "image/jpeg")

    async def _made(self, make: Callable[[int], bytes], image: int) -> bytes:
        from starlette.concurrency import run_in_threadpool

        try:
            return await run_in_threadpool(make, image)
        except Unreadable as fault:
            raise Refused(404, f"the image cannot be shown: {fault}") from fault

    def _picture(self, content: bytes, kind: str) -> Response:
        from starlette.responses import Response

        return Response(content, media_type=kind, headers={"cache-control": f"private, max-age={YEAR}, immutable"})

    def _number(self, text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) >= len(self.session.pool):
            raise Refused(404, "there is no such image")
        return int(text)

    async def state(self, request: Request) -> Response:
        """What there is."""
        return await self._threaded(self.session.state_json)

    async def events(self, request: Request) -> Response:
        """The state whenever it has changed."""
        from starlette.responses import StreamingResponse

        return StreamingResponse(self._changes(request), media_type="text/event-stream")

    async def _changes(self, request: Request) -> AsyncIterator[str]:
        from starlette.concurrency import run_in_threadpool

        seen = -1
        said = time.monotonic()
        while not await request.is_disconnected():
            if self.session.changed != seen:
                seen = self.session.changed
                said = time.monotonic()
                state = await run_in_threadpool(self.session.state_json)
                yield f"event: state\ndata: {json.dumps(state)}\n\n"
            elif time.monotonic() - said > KEEP_ALIVE:
                said = time.monotonic()
                yield ": still here\n\n"
            await asyncio.sleep(EVENT_SECONDS)

    async def next(self, request: Request) -> Response:
        """What to label next."""
        held = request.query_params.get("skip", "")
        if not re.fullmatch(r"([0-9]{1,9}(,[0-9]{1,9})*)?", held):
            raise Refused(400, "skip must be numbers of images, separated by commas")
        skip = [int(text) for text in held.split(",") if text]
        return await self._threaded(self.session.next, _integer(request, "count", 20, MOST_ITEMS), skip)

    async def grid(self, request: Request) -> Response:
        """Tiles of one class."""
        cls = _integer(request, "class", None, 10**9, low=0)
        purpose = request.query_params.get("purpose", "teach")
        return await self._threaded(self.session.grids.show, cls, _integer(request, "count", 48, MOST_ITEMS), purpose)

    async def clean(self, request: Request) -> Response:
        """What to look at again."""
        kind = request.query_params.get("kind", "")
        return await self._threaded(self.session.cleaning.show, kind, _integer(request, "count", 48, MOST_ITEMS))

    async def cls(self, request: Request) -> Response:
        """The labels of one class."""
        text = request.path_params["cls"]
        if not re.fullmatch(r"[0-9]{1,9}", text):
            raise Refused(404, "there is no such class")
        offset = _integer(request, "offset", 0, 10**9, low=0)
        return await self._threaded(
            self.session.cleaning.of_class, int(text), offset, _integer(request, "count", 48, MOST_ITEMS)
        )

    async def act(self, request: Request) -> Response:
        """What the person did."""
        return await self._threaded(self.session.act, await read_json_body(request))

    async def export(self, request: Request) -> Response:
        """Write files."""
        from starlette.concurrency import run_in_threadpool

        given = await read_json_body(request)
        if self.export_files is None:
            raise Refused(404, "nothing can be exported here")
        return answer(await run_in_threadpool(self.export_files, str(given.get("format"))[:50]))

    async def _threaded(self, work: Callable[..., Any], *arguments: Any) -> Response:
        from starlette.concurrency import run_in_threadpool

        return answer(await run_in_threadpool(work, *arguments))


def cookie_name(request: Request) -> str:
    """Cookies do not know ports, so that two servers need two names."""
    return f"vcc_infuse_label_{request.url.port or 80}"


def check_post(request: Request) -> None:
    """Refuse what a form, or the page of another site, could send."""
    if request.headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
        raise Refused(415, "the content type must be application/json")
    origin = urlsplit(request.headers.get("origin", ""))
    if origin.scheme not in ("http", "https") or origin.netloc != request.headers.get("host"):
        raise Refused(403, "the request comes from another page")


async def read_json_body(request: Request) -> dict[str, Any]:
    """The JSON object of a request of limited size."""
    content = b""
    async for part in request.stream():
        content += part
        if len(content) > LARGEST_BODY:
            raise Refused(413, f"the request is larger than {LARGEST_BODY:,} bytes")
    try:
        given = json.loads(content)
    except (ValueError, RecursionError) as fault:
        raise Refused(400, "the request is no JSON") from fault
    if not isinstance(given, dict):
        raise Refused(400, "the request must be a JSON object")
    return given


def _integer(request: Request, name: str, default: int | None, most: int, low: int = 1) -> int:
    text = request.query_params.get(name)
    if text is None and default is not None:
        return default
    if text is None or not re.fullmatch(r"[0-9]{1,9}", text) or not low <= int(text) <= most:
        raise Refused(400, f"{name} must be an integer from {low} to {most}")
    return int(text)
