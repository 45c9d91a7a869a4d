"""Objects as plain data and back: class path and constructor arguments, as in jsonargparse's configuration files."""

from __future__ import annotations

import importlib
import inspect
from typing import Any, TypeVar

from torch import nn

from ..errors import UserError

T = TypeVar("T")
MISMATCH = "loading state_dict"  # in torch's message if tensors are missing or have another shape


def to_config(thing: object) -> dict[str, Any]:
    """The class path and constructor arguments of an object whose `__init__` stores each argument under its name."""
    kind = type(thing)
    names = [name for name in inspect.signature(kind.__init__).parameters if name != "self"]
    arguments = {name: _plain(getattr(thing, name)) for name in names if hasattr(thing, name)}
    return {"class_path": _class_path(kind), "init_args": arguments}


def from_config(config: dict[str, Any], base: type[T]) -> T:
    """The object that `to_config` described, if its class is a subclass of `base`."""
    module, _, name = config["class_path"].rpartition(".")
    try:
        kind = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as fault:
        remedy = "make it importable, for example by starting Python in the folder of its file"
        raise UserError(f"cannot import {config['class_path']}, which this run uses ({fault}); {remedy}") from fault
    if not (isinstance(kind, type) and issubclass(kind, base)):
        raise UserError(f"{config['class_path']} is not a {base.__name__}")
    # An argument may be an object of the same kind: DARP(base=FlexMatch()).
    arguments = {name: from_config(v, base) if _is_config(v) else v for name, v in config["init_args"].items()}
    return kind(**arguments)


def _class_path(kind: type) -> str:
    """`vcc_infuse.<Class>` for a public class, so that files do not depend on private modules."""
    package = __name__.partition(".")[0]
    if kind.__module__.startswith(f"{package}."):
        public = getattr(importlib.import_module(package), kind.__name__, None)
        if public is kind:
            return f"{package}.{kind.__name__}"
    return f"{kind.__module__}.{kind.__qualname__}"


def _is_config(value: Any) -> bool:
    return isinstance(value, dict) and "class_path" in value


def _plain(value: Any) -> Any:
    if isinstance(value, nn.Module):
        return to_config(value)
    return list(value) if isinstance(value, tuple) else value


def load_state(part: Any, state: dict[str, Any], error_message: str) -> None:
    """Load `state`; tensors that do not match raise `error_message`, any other error passes through."""
    try:
        part.load_state_dict(state)
    except RuntimeError as fault:
        if MISMATCH not in str(fault):
            raise
        raise UserError(error_message) from fault
