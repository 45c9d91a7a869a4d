"""`vcc-infuse list`: what there is to choose from, a line each, read from the classes themselves."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

from ..data.loading import SOURCES
from .parsing import Parser
from .registry import KINDS, choices


def run(argv: Sequence[str]) -> None:
    """Print every choice."""
    parser = Parser(prog="vcc-infuse list", description="Show what there is to choose from.")
    parser.add_argument("--markdown", action="store_true", help="as the tables of docs/methods.md")
    if parser.read(argv).markdown:
        print(markdown(), end="")
        return
    for title, module, base in KINDS:
        section(title, {kind.__name__: first_line(kind) for kind in choices(module, base)})
    section("data sources", {**SOURCES, "PATH": "a folder or zip of class folders, or labeled/ unlabeled/ test/"})


def first_line(kind: type) -> str:
    """The first sentence of a docstring."""
    return (inspect.getdoc(kind) or "").split("\n\n")[0].replace("\n", " ")


def section(title: str, lines: dict[str, str]) -> None:
    """A heading and aligned lines."""
    width = max(len(name) for name in lines)
    print(f"{title}:")
    for name, text in lines.items():
        print(f"  {name:<{width}}  {text}")
    print()


def markdown() -> str:
    """A table a kind, made from signatures and docstrings, so that it cannot drift from the code."""
    lines = [
        "# Methods",
        "",
        "Made by `vcc-infuse list --markdown`; options are given as `--algorithm.threshold 0.9`.",
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
    """Name, the module's first paragraph, the class's text before its arguments, the constructor's defaults."""
    source = inspect.getmodule(kind)
    idea = paragraph((source.__doc__ if source else "") or "")
    text = (inspect.getdoc(kind) or "").split("Args:")[0]
    parameters = inspect.signature(kind).parameters.values()
    defaults = ", ".join(f"{p.name}={p.default!r}" for p in parameters if p.default is not p.empty)
    return f"`{kind.__name__}`", idea, " ".join(text.split()), f"`{defaults}`" if defaults else "–"


def paragraph(text: str) -> str:
    """The first paragraph on one line."""
    return " ".join(text.strip().split("\n\n")[0].split()).replace("|", "\\|")
