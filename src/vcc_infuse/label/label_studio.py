"""Label Studio: tasks with annotations and predictions, and the five routes of its ML backend.

Tasks come in as a `--label_file`, which reads their annotations.
"""

from __future__ import annotations

import base64
import binascii
import re
import secrets
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..data.sources.label_table import FileNames, studio_file
from ..errors import UserError
from .session import Session

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from .server import Handler, Keys

CHOICE = "choice"
IMAGE = "image"
LOCAL_FILES = "/data/local-files/?d="
CREATED = ("ANNOTATION_CREATED", "ANNOTATION_UPDATED")


def choice_result(label: str, from_name: str = CHOICE, to_name: str = IMAGE) -> dict[str, Any]:
    """One region of a result: the choice of a class."""
    return {"id": secrets.token_hex(5), "from_name": from_name, "to_name": to_name, "type": "choices",
            "value": {"choices": [label]}}  # fmt: skip


def model_version(session: Session) -> str:
    """A name for what the model knows."""
    return f"vcc-infuse-{session.answer.version}"


def studio_tasks(session: Session) -> list[dict[str, Any]]:
    """One task per image: labels as annotations, what the model says as predictions."""
    with session.lock:
        state = session.state
        guess = session.guess()
        label = state.label.copy()
        names = {number: item.name for number, item in state.classes.items()}
        confidence = [_confidence(session, image, int(cls)) for image, cls in enumerate(guess)]
        version = model_version(session)
    tasks = []
    for image, name in enumerate(session.pool.names):
        task: dict[str, Any] = {"data": {IMAGE: f"{LOCAL_FILES}{name}"}}
        if label[image] >= 0:
            task["annotations"] = [{"result": [choice_result(names[int(label[image])])]}]
        if guess[image] >= 0:
            result = [choice_result(names[int(guess[image])])]
            task["predictions"] = [{"model_version": version, "score": confidence[image], "result": result}]
        tasks.append(task)
    return tasks


def _confidence(session: Session, image: int, cls: int) -> float:
    probs = session.answer.probs
    if probs is None or cls < 0:
        return 0.0
    return round(float(probs[image, session.answer.classes.index(cls)]), 4)


class Backend:
    """The answers of the ML backend."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.files = FileNames(session.pool.names)

    def image_of(self, task: Mapping[str, Any]) -> int | None:
        """The image that a task means; None if it is not among the photos."""
        data = task.get("data")
        if not isinstance(data, Mapping) or not any(isinstance(value, str) for value in data.values()):
            return None
        found = self.files.find(studio_file(data))
        return self.session.pool.number[found[0]] if len(found) == 1 else None

    def predict(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """A prediction per task; one without a result where there is nothing to say."""
        tasks = given.get("tasks")
        if not isinstance(tasks, list) or not all(isinstance(task, Mapping) for task in tasks):
            raise UserError("tasks must be a list of tasks")
        names = tag_names(str(given.get("label_config") or ""))
        with self.session.lock:
            return {"results": [self._predict_one(task, names) for task in tasks]}

    def _predict_one(self, task: Mapping[str, Any], names: tuple[str, str]) -> dict[str, Any]:
        image = self.image_of(task)
        ranked = [] if image is None else self.session.ranked(image)
        version = model_version(self.session)
        if not ranked:
            return {"model_version": version, "score": 0.0, "result": []}
        label = self.session.state.classes[ranked[0]["class"]].name
        return {"model_version": version, "score": ranked[0]["confidence"], "result": [choice_result(label, *names)]}

    def webhook(self, given: Mapping[str, Any]) -> None:
        """Take over an annotation that was made in Label Studio."""
        action = given.get("action")
        task = given.get("task")
        image = self.image_of(task) if isinstance(task, Mapping) else None
        if action == "START_TRAINING":
            self.session.ask()
        if image is None:
            return
        if action == "ANNOTATION_DELETED":
            self.session.act({"action": "unlabel", "image": image})
        choice = choice_of(given.get("annotation"))
        if action in CREATED and choice is not None:
            self.session.act({"action": "label", "image": image, "class": self._class(choice)})

    def _class(self, name: str) -> int:
        """The number of a class, which is created if there is none of the name."""
        known = {item.name: number for number, item in self.session.state.open_classes().items()}
        if name not in known:
            self.session.act({"action": "new_class", "name": name})
            known = {item.name: number for number, item in self.session.state.open_classes().items()}
        return known[name]


def choice_of(annotation: Any) -> str | None:
    """The class that an annotation says; None if it is none of one class."""
    results = annotation.get("result") if isinstance(annotation, Mapping) else None
    values = [item.get("value") for item in results or () if isinstance(item, Mapping)]
    choices = [choice for value in values if isinstance(value, Mapping) for choice in value.get("choices") or ()]
    return choices[0].strip() if len(choices) == 1 and isinstance(choices[0], str) else None


def tag_names(label_config: str) -> tuple[str, str]:
    """The name of the Choices tag of a labeling interface, and what it refers to.

    >>> tag_names('<View><Image name="photo" value="$image"/><Choices name="animal" toName="photo"/></View>')
    ('animal', 'photo')
    """
    tag = re.search(r"<Choices\b[^>]*", label_config)
    text = tag[0] if tag else ""
    name = re.search(r'\bname="([^"]{1,200})"', text)
    to_name = re.search(r'\btoName="([^"]{1,200})"', text)
    return name[1] if name else CHOICE, to_name[1] if to_name else IMAGE


def allowed(authorization: str, token: str) -> bool:
    """Whether a header holds the token: as a token, or as the password of basic authentication."""
    kind, _, rest = authorization.partition(" ")
    given = rest.strip()
    if kind.lower() == "basic":
        try:
            given = base64.b64decode(given, validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return False
    elif kind.lower() not in ("token", "bearer"):
        return False
    return secrets.compare_digest(given.encode(), token.encode())


def ml_backend_routes(session: Session, keys: Keys, refusing: Callable[[Handler], Handler]) -> list[Any]:
    """The routes that Label Studio calls; `refusing` turns refusals of a handler into answers."""
    from starlette.concurrency import run_in_threadpool
    from starlette.responses import Response
    from starlette.routing import Route

    from .server import Refused, answer, read_json_body

    backend = Backend(session)

    def check(request: Request) -> None:
        if not allowed(request.headers.get("authorization", ""), keys.studio_token):
            raise Refused(401, "the token is missing or wrong; the terminal shows it")
        kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
        if request.method == "POST" and kind != "application/json":
            raise Refused(415, "the content type must be application/json")

    async def predict(request: Request) -> Response:
        check(request)
        return answer(await run_in_threadpool(backend.predict, await read_json_body(request)))

    async def setup(request: Request) -> Response:
        check(request)
        return answer({"model_version": model_version(session)})

    async def webhook(request: Request) -> Response:
        check(request)
        await run_in_threadpool(backend.webhook, await read_json_body(request))
        return Response(status_code=201)

    async def health(request: Request) -> Response:
        check(request)
        return answer({"status": "UP", "model_class": "vcc-infuse"})

    async def metrics(request: Request) -> Response:
        check(request)
        return answer({})

    posts = {"/predict": predict, "/setup": setup, "/webhook": webhook}
    gets = {"/health": health, "/metrics": metrics}
    return [
        *(Route(path, refusing(handler), methods=["POST"]) for path, handler in posts.items()),
        *(Route(path, refusing(handler), methods=["GET"]) for path, handler in gets.items()),
    ]
