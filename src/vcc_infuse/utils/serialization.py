"""Objects as plain data and back: class path and constructor arguments, as in jsonargparse's configuration files.

A file may name a class of another package. Importing it runs code, so that needs the user's trust.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Collection
from typing import Any, TypeVar

from torch import nn

from ..errors import UserError
from .io import in_words

T = TypeVar("T")
Trust = bool | Collection[str]
"""Whether classes of other packages may be imported: all, none, or those of these import paths."""
PACKAGE = __name__.partition(".")[0]


def to_config(thing: object) -> dict[str, Any]:
    """The class path and constructor arguments of an object whose `__init__` stores each argument under its name."""
    arguments: dict[str, Any] = {}
    for name in inspect.signature(type(thing).__init__).parameters:
        if name != "self" and hasattr(thing, name):
            value = getattr(thing, name)
            plain = list(value) if isinstance(value, tuple) else value
            arguments[name] = to_config(value) if isinstance(value, nn.Module) else plain
    return {"class_path": class_path(type(thing)), "init_args": arguments}


def from_config(config: dict[str, Any], base: type[T], trust_code: Trust = False) -> T:
    """The object that `to_config` described, if its class is a subclass of `base`."""
    kind = import_class(config["class_path"], trust_code)
    if not (isinstance(kind, type) and issubclass(kind, base)):
        raise UserError(f"{config['class_path']} is not a {base.__name__}")
    # An argument may be an object of the same kind: DARP(base=FlexMatch()).
    arguments = {
        name: from_config(value, base, trust_code) if isinstance(value, dict) and "class_path" in value else value
        for name, value in config["init_args"].items()
    }
    return kind(**arguments)


def import_class(path: str, trust_code: Trust, where: str = "") -> Any:
    """What an import path names. Importing runs code, so other packages need `trust_code`."""
    check_trusted(path, trust_code, where)
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as fault:  # the code of another package can raise anything
        reason = str(fault) if isinstance(fault, ImportError | AttributeError) else in_words(fault)
        remedy = "install its package, or give its file with --import (in Python: import it first)"
        raise UserError(f"{where}{path} cannot be imported: {reason}; {remedy}") from fault


def check_trusted(path: object, trust_code: Trust, where: str = "") -> None:
    """Refuse the class path of another package unless it is trusted."""
    parts = str(path).split(".")
    if not (isinstance(path, str) and len(parts) > 1 and all(part.isidentifier() for part in parts)):
        raise UserError(f"{where}{str(path)[:200]!r} is not the import path of a class, such as {PACKAGE}.FixMatch")
    ours = parts[0] == PACKAGE and "__main__" not in parts
    if not (ours or trust_code is True or (trust_code is not False and path in trust_code)):
        remedy = "if you trust it, give --trust-code, and its file with --import (in Python: trust_code=True)"
        raise UserError(f"{where}{path} is code outside {PACKAGE}, and is not run; {remedy}")


def class_path(kind: type) -> str:
    """`vcc_infuse.<Class>` for a public class, so that files do not depend on private modules."""
    is_public = getattr(importlib.import_module(PACKAGE), kind.__name__, None) is kind
    return f"{PACKAGE}.{kind.__name__}" if is_public else f"{kind.__module__}.{kind.__qualname__}"


def load_state(part: Any, state: dict[str, Any], error_message: str) -> None:
    """Load `state`; tensors that do not match raise `error_message`, any other error passes through."""
    try:
        part.load_state_dict(state)
    except RuntimeError as fault:
        if "loading state_dict" not in str(fault):  # torch's words if tensors are missing or have another shape
            raise
        raise UserError(error_message) from fault
