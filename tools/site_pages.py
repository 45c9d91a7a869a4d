"""What MkDocs adds to docs/ when it builds the site: the reference, a page per method, README, results and examples.

Links between files of the repository become links between pages of the site; a link to any other file becomes text.
"""

from __future__ import annotations

import inspect
import os
import posixpath
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import vcc_infuse
from vcc_infuse.cli.registry import KINDS, choices, summary
from vcc_infuse.cli.train_help import arguments

sys.path.insert(0, str(Path(__file__).parent))
import table_figure

ROOT = Path(__file__).parents[1]
TITLES = {
    "run": "Train", "data": "Data", "algorithms": "Algorithms", "calibrators": "Calibrators", "selectors": "Selectors",
    "models": "Models", "bank": "Bank", "training": "Trainer and options", "inference": "Predict and export",
    "audit": "Audit and suggest", "estimator": "scikit-learn", "types": "Values", "errors": "Errors",
    "functional": "functional", "metrics": "metrics", "pool_audit": "pool_audit",
}  # fmt: skip
MODULES = ("functional", "metrics", "pool_audit")


LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!\w+:|#)([^)#\s]*)(#[^)\s]*)?\)")


def repository_pages() -> dict[str, str]:
    """Where each file outside docs/ stands in the site."""
    pages = {"README.md": "index.md"} | {name: name for name in ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")}
    results = [file for kind in ("md", "png", "svg") for file in sorted(ROOT.glob(f"results/**/*.{kind}"))]
    for path in (str(file.relative_to(ROOT)) for file in results):
        pages[path] = path.replace("README.md", "index.md")
    for file in sorted(ROOT.glob("examples/*.py")):
        pages[f"examples/{file.name}"] = f"examples/{file.stem}.md"
    return {**pages, "examples": "examples/index.md", "results": "results/index.md"}


PAGES = repository_pages()
HOMES = {page: path for path, page in PAGES.items() if path.endswith(".md")}


def rooms() -> dict[str, list[str]]:
    """The public names by the room that exports them."""
    named = {room: list(import_module(f"vcc_infuse.{room}").__all__) for room in TITLES}
    listed = {name for names in named.values() for name in names}
    missing = set(vcc_infuse.__all__) - listed - set(MODULES)
    if missing:
        raise ValueError(f"no page of the reference has {', '.join(sorted(missing))}; add its room to TITLES")
    return named


def defined_in(room: str, name: str) -> str:
    """The full name of a public object, where it is defined."""
    thing = getattr(import_module(f"vcc_infuse.{room}"), name)
    home = getattr(thing, "__module__", None) or ""
    return f"{home}.{name}" if home.startswith("vcc_infuse") else f"vcc_infuse.{room}.{name}"


def reference_page(room: str, names: list[str]) -> str:
    """The objects of a room, from their docstrings."""
    where = f"vcc_infuse.{room}" if room in MODULES else "vcc_infuse"
    entries = [f"::: {defined_in(room, name)}\n" for name in names]
    return "\n".join([f"# {TITLES[room]}\n", f"Names of `{where}`.\n", *entries])


def method_page(kind: type, option: str) -> str:
    """One class that a user can choose: what it does, its options, its row in the tables, its file."""
    text = (inspect.getdoc(kind) or "").split("Args:")[0].strip()
    file = Path(inspect.getfile(kind))
    parameters = inspect.signature(kind).parameters
    rows = [
        f"| `--{name}` | {escaped(meaning)} |" for name, meaning in arguments(option, kind).items()
        if name.partition(".")[2] in parameters
    ]  # fmt: skip
    table = ["## Options\n", "| option | meaning (default) |\n|---|---|", *rows, ""] if rows else []
    command = f"```\nvcc-infuse train --data photos --{option} {kind.__name__}\n```\n"
    source = f'??? note "{file.relative_to(ROOT)}"\n\n    ```python\n{indented(file.read_text())}\n    ```\n'
    idea = f"{summary(inspect.getmodule(kind))}\n"
    rule = f"## Rule\n\n{text}\n"
    figures = table_figure.section(option, kind.__name__)
    return "\n".join([f"# {kind.__name__}\n", idea, command, rule, *table, figures, "## Source\n", source])


def escaped(text: str) -> str:
    """A text that can stand in a cell of a table."""
    return text.replace("|", "\\|").replace("\n", " ")


def indented(text: str) -> str:
    """Every line moved by four spaces."""
    return "\n".join(f"    {line}" for line in text.splitlines())


def example_page(path: Path) -> str:
    """An example as a page."""
    return f"# {path.name}\n\n```python\n{path.read_text()}```\n"


def methods() -> Iterator[tuple[str, type]]:
    """(option, class) of everything that can be chosen by name."""
    for title, module, base in KINDS:
        for kind in choices(module, base):
            yield title.removesuffix("s"), kind


def generated_pages() -> Iterator[tuple[str, str]]:
    """(path, text) of the pages that are no file."""
    for room, names in rooms().items():
        yield f"reference/{room}.md", reference_page(room, names)
    for option, kind in methods():
        yield f"methods/{kind.__name__}.md", method_page(kind, option)
    examples = sorted(ROOT.glob("examples/*.py"))
    for path in examples:
        yield f"examples/{path.stem}.md", example_page(path)
    lines = [f"- [{path.name}]({path.stem}.md): {summary_of(path)}" for path in examples]
    yield "examples/index.md", "\n".join(["# Examples\n", *lines])


def summary_of(path: Path) -> str:
    """The first line of the docstring of a file."""
    return path.read_text().split('"""')[1].strip().splitlines()[0]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the generated pages into the menu."""
    nav: list[dict[str, Any]] = config.nav or []
    for section in nav:
        if "Reference" in section:
            section["Reference"] = [{title: f"reference/{room}.md"} for room, title in TITLES.items()]
        if "Methods" in section:
            for title, module, base in KINDS:
                pages = [{kind.__name__: f"methods/{kind.__name__}.md"} for kind in choices(module, base)]
                section["Methods"].append({title.capitalize(): pages})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add everything that is not in docs/."""
    for path, page in PAGES.items():
        source = ROOT / path
        if source.is_file() and source.suffix != ".py":
            files.append(File.generated(config, page, abs_src_path=str(source)))
    for page, text in generated_pages():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links between files of the repository to pages of the site."""
    here = page.file.src_uri
    home = HOMES.get(here) or (f"docs/{here}" if (ROOT / "docs" / here).is_file() else "")
    if not home:  # a generated page
        return markdown
    return LINK.sub(lambda link: led(link, home, here), markdown)


def led(link: re.Match[str], home: str, here: str) -> str:
    """One link of the file `home`, which is the page `here`."""
    mark, text, target, anchor = link.groups()
    path = posixpath.normpath(posixpath.join(posixpath.dirname(home), target))
    place = path.removeprefix("docs/") if path.startswith("docs/") else PAGES.get(path)
    if place is None:
        return text
    relative = os.path.relpath(place, posixpath.dirname(here) or ".")
    return f"{mark}[{text}]({relative}{anchor or ''})"
