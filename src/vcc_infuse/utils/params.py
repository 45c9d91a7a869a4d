"""Options of a method: how a dataclass declares and checks them, and how scikit-learn reads and sets them."""

from __future__ import annotations

import copy
import inspect
import math
from dataclasses import field, fields
from functools import partial
from typing import Any, Literal, Self, get_args, get_origin

from ..errors import NO_LIMIT, UserError, check_choice, check_integer, check_range
from .suggest import did_you_mean


def number(
    default: float | None, low: float = 0, high: float = math.inf, *, open_low: bool = False, open_high: bool = False
) -> Any:
    """An option of a dataclass: a number that `check_range` accepts. None is allowed if it is the default."""
    check = partial(check_range, low=low, high=high, open_low=open_low, open_high=open_high)
    return field(default=default, metadata={"check": check})


def integer(default: int | None, low: int = 1, high: int = NO_LIMIT) -> Any:
    """An option of a dataclass: an integer from `low` to `high`. None is allowed if it is the default."""
    return field(default=default, metadata={"check": partial(check_integer, low=low, high=high)})


class HasOptions:
    """A class whose `__init__` stores every argument under its name, with scikit-learn's `get_params` and `set_params`.

    A dataclass has its options checked: `number` and `integer` by their limits, a `Literal` by its choices.

    >>> from vcc_infuse import FixMatch
    >>> FixMatch(threshold=0.9).get_params()
    {'weight': 1.0, 'threshold': 0.9}
    >>> FixMatch().set_params(threshold=0.5)
    FixMatch(weight=1.0, threshold=0.5)
    """

    def __post_init__(self) -> None:
        super().__init__()  # a dataclass does not call that of nn.Module
        for option in fields(self):  # type: ignore[arg-type]
            value = getattr(self, option.name)
            if get_origin(option.type) is Literal:
                check_choice(option.name, value, get_args(option.type))
            elif "check" in option.metadata and not (value is None and option.default is None):
                setattr(self, option.name, option.metadata["check"](option.name, value))

    @classmethod
    def option_names(cls) -> list[str]:
        """The names of the constructor's arguments."""
        parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
        return [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The options; with `deep` also those of options that are objects, as base__threshold."""
        params: dict[str, Any] = {}
        for name in self.option_names():
            if not hasattr(self, name):
                kind = type(self).__name__
                raise UserError(f"{kind} does not keep its option {name}; write self.{name} = {name} in its __init__")
            params[name] = value = getattr(self, name)
            if deep and isinstance(value, HasOptions):
                params |= {f"{name}__{inner}": option for inner, option in value.get_params().items()}
        return params

    def set_params(self, **options: Any) -> Self:
        """Construct the object anew with some options changed: they are checked, and whatever it learned is gone."""
        params = self.get_params(deep=False)
        nested: dict[str, dict[str, Any]] = {}
        for name, value in options.items():
            first, _, rest = name.partition("__")
            if first not in params:
                raise UserError(f"{first} is not an option of {type(self).__name__}{did_you_mean(first, params)}")
            if rest:
                nested.setdefault(first, {})[rest] = value
            else:
                params[first] = value
        for name, changes in nested.items():
            if not isinstance(params[name], HasOptions):
                raise UserError(f"{name} of {type(self).__name__} is {params[name]!r}, which has no options to set")
            params[name] = copy.deepcopy(params[name]).set_params(**changes)
        changed = type(self)(**params)
        vars(self).clear()
        vars(self).update(vars(changed))
        return self

    def extra_repr(self) -> str:
        """The options as torch shows them in the repr of a module; objects among them follow as submodules."""
        options = {name: getattr(self, name, "?") for name in self.option_names()}
        return ", ".join(f"{name}={value!r}" for name, value in options.items() if not isinstance(value, HasOptions))

    def __sklearn_clone__(self) -> Self:
        return copy.deepcopy(self)
