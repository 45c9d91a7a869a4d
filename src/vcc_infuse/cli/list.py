"""`vcc-infuse list`: the choices for each option, one line each, read from the classes themselves."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence

from ..data.loading import SOURCES
from .parsing import Parser
from .registry import KINDS, choices


def run(argv: Sequence[str]) -> None:
    """Print every choice."""
    parser = Parser("vcc-infuse list", "Show algorithms, calibrators, selectors, models and data sources.")
    parser.add_argument("--markdown", action="store_true", help="print the tables of docs/methods.md")
    if parser.read(argv).markdown:
        print(markdown(), end="")
        return
    for title, module, base in KINDS:
        section(title, {kind.__name__: first_paragraph(inspect.getdoc(kind)) for kind in choices(module, base)})
    section("data sources", {**SOURCES, "PATH": "a folder or zip of class folders, or labeled/ unlabeled/ test/"})


def section(title: str, lines: dict[str, str]) -> None:
    """A heading and aligned lines."""
    width = max(len(name) for name in lines)
    print(f"{title}:")
    for name, text in lines.items():
        print(f"  {name:<{width}}  {text}")
    print()


def markdown() -> str:
    """One table per kind, made from signatures and docstrings, so that it cannot differ from the code."""
    lines = [
        "# Methods",
        "",
        "Written by `vcc-infuse list --markdown`. Options are given as `--algorithm.threshold 0.9`.",
        "",
    ]
    for title, module, base in KINDS:
        lines += [
            f"## {title[0].upper()}{title[1:]}",
            "",
            "| name | idea and source | what it does | defaults |",
            "|---|---|---|---|",
        ]
        lines += [f"| {' | '.join(row(kind))} |" for kind in choices(module, base)]
        lines.append("")
    return "\n".join(lines)


def row(kind: type) -> tuple[str, str, str, str]:
    """Name, first paragraph of the module, docstring of the class without its arguments, defaults."""
    source = inspect.getmodule(kind)
    idea = first_paragraph(source.__doc__ if source else None).replace("|", "\\|")
    text = re.split("(?:Args|References):\n", inspect.getdoc(kind) or "")[0]
    parameters = inspect.signature(kind).parameters.values()
    defaults = ", ".join(f"{p.name}={p.default!r}" for p in parameters if p.default is not p.empty)
    return f"`{kind.__name__}`", idea, " ".join(text.split()), f"`{defaults}`" if defaults else "–"


def first_paragraph(text: str | None) -> str:
    """The first paragraph of a docstring on one line."""
    return " ".join((text or "").strip().split("\n\n")[0].split())
