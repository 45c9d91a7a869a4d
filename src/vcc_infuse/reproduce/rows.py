"""Rows that several tables share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import algorithms
from .table import Row

NAMES = {"PseudoLabel": "Pseudo-Label", "PiModel": "Π-model"}


def shown(name: str) -> str:
    """A method's name in a table."""
    return NAMES.get(name, name)


def method(name: str, paper: Mapping[str, Any] | None = None) -> Row:
    """An algorithm alone."""
    return Row(shown(name), {"algorithm": name}, None, paper or {})


def with_vcc(name: str, paper: Mapping[str, Any] | None = None, **options: Any) -> Row:
    """The same algorithm with VCC, compared with itself."""
    own = {f"calibrator.{key}": value for key, value in options.items()}
    return Row(f"VCC-{shown(name)}", {"algorithm": name, "calibrator": "VCC", **own}, shown(name), paper or {})


def pair(name: str, papers: Mapping[str, Mapping[str, Any]]) -> tuple[Row, Row]:
    """A method without and with VCC."""
    return method(name, papers.get(name)), with_vcc(name, papers.get(f"VCC-{name}"))


def vcc_variant(base: str, name: str, paper: Mapping[str, Any] | None = None, **options: Any) -> Row:
    """VCC with other options, compared with its default."""
    own = {f"calibrator.{key}": value for key, value in options.items()}
    full = f"VCC-{shown(base)}"
    return Row(f"{full} {name}", {"algorithm": base, "calibrator": "VCC", **own}, full, paper or {})


def takes_confidence(name: str) -> bool:
    """Whether a calibrator has something to do in this method."""
    return bool(getattr(algorithms, name).uses_confidence)


def figures(text: str, columns: tuple[str, ...], width: int = 1) -> dict[str, dict[str, Any]]:
    """The paper's numbers, a line a row: name, then `width` numbers a column; `-` where it has none."""
    papers: dict[str, dict[str, Any]] = {}
    for line in text.strip().splitlines():
        name, *words = line.split()
        groups = [words[i : i + width] for i in range(0, len(words), width)]
        known = {c: tuple(map(float, g)) for c, g in zip(columns, groups, strict=True) if "-" not in g}
        papers[name] = {c: g[0] if width == 1 else g for c, g in known.items()}
    return papers
