"""Shows doctests of the reference as code: they stand in docstrings without a fence."""

import re
from typing import Any

import griffe

DOCTEST = re.compile(r"^>>> .*(?:\n(?!$).*)*", re.M)


class DoctestBlocks(griffe.Extension):
    """Called by mkdocstrings for each object that it reads."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring:
            obj.docstring.value = DOCTEST.sub(r"```pycon\n\g<0>\n```", obj.docstring.value)
