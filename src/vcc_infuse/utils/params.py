"""Options of a method as scikit-learn reads and sets them, from the signature of its constructor."""

from __future__ import annotations

import copy
import inspect
from typing import Any, Self

from ..errors import UserError
from .suggest import did_you_mean


class HasOptions:
    """A class whose `__init__` stores every argument under its name, with scikit-learn's `get_params` and `set_params`.

    >>> from vcc_infuse import FixMatch
    >>> FixMatch(threshold=0.9).get_params()
    {'threshold': 0.9, 'weight': 1.0}
    >>> FixMatch().set_params(threshold=0.5)
    FixMatch(threshold=0.5, weight=1.0)
    """

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
        type(self).__init__(self, **params)
        return self

    def extra_repr(self) -> str:
        """The options as torch shows them in the repr of a module; objects among them follow as submodules."""
        options = {name: getattr(self, name, "?") for name in self.option_names()}
        return ", ".join(f"{name}={value!r}" for name, value in options.items() if not isinstance(value, HasOptions))

    def __sklearn_clone__(self) -> Self:
        return copy.deepcopy(self)
