"""Objects as data and back: class path and constructor arguments, as scikit-learn's get_params does."""

from __future__ import annotations

import importlib
import inspect
from typing import Any, TypeVar

from torch import nn

from ..errors import UserError

T = TypeVar("T")


def to_config(thing: object) -> dict[str, Any]:
    """The class and constructor arguments of an object whose `__init__` stores each under its own name."""
    kind = type(thing)
    names = [name for name in inspect.signature(kind.__init__).parameters if name != "self"]
    arguments = {name: _plain(getattr(thing, name)) for name in names if hasattr(thing, name)}
    return {"class_path": f"{kind.__module__}.{kind.__qualname__}", "init_args": arguments}


def from_config(description: dict[str, Any], base: type[T]) -> T:
    """Make the object again; only subclasses of `base` are made, whatever the description says."""
    module, _, name = description["class_path"].rpartition(".")
    try:
        kind = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as fault:
        raise UserError(f"cannot import {description['class_path']}, which this run was made with: {fault}") from fault
    if not (isinstance(kind, type) and issubclass(kind, base)):
        raise UserError(f"{description['class_path']} is not a {base.__name__}")
    # An argument may be such an object itself, of the same family: DARP(base=FlexMatch()).
    arguments = {name: from_config(v, base) if _described(v) else v for name, v in description["init_args"].items()}
    return kind(**arguments)


def _described(value: Any) -> bool:
    return isinstance(value, dict) and "class_path" in value


def _plain(value: Any) -> Any:
    if isinstance(value, nn.Module):
        return to_config(value)
    return list(value) if isinstance(value, tuple) else value


MISFIT = "loading state_dict"  # torch's words where tensors are missing or of another shape


def load_state(part: Any, state: dict[str, Any], error_message: str) -> None:
    """Load `state`; tensors that do not fit raise `error_message`, any other fault stays what it is."""
    try:
        part.load_state_dict(state)
    except RuntimeError as fault:
        if MISFIT not in str(fault):
            raise
        raise UserError(error_message) from fault
