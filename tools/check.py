"""`make check`: linters, types, and the tests of what has changed.

A file src/vcc_infuse/ROOM/NAME.py is tested by tests/ROOM/test_NAME.py; a changed test is run itself, but for those of
tests/integration, which take minutes and are left to `make test`. Changed is what differs from the branch main of
`origin`, or from the last commit where there is none.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
ALWAYS = ["tests/contract/test_imports.py"]
TOO_LONG = "tests/integration/"


def lines(*command: str) -> list[str]:
    """What a command prints; nothing if it fails."""
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.split()


def changed() -> list[str]:
    """Files that differ, also those that git does not know yet."""
    base = lines("git", "merge-base", "HEAD", "origin/main") or ["HEAD"]
    return lines("git", "diff", "--name-only", base[0]) + lines("git", "ls-files", "--others", "--exclude-standard")


def tests_of(path: str) -> list[str]:
    """The test files that belong to a changed file."""
    file = Path(path)
    if file.name.startswith("test_") and file.suffix == ".py":
        return [path]
    home = {"src": file.parts[2:-1], "tools": ("tools",), "paper": ("paper",), "benchmarks": ("benchmarks",)}
    if file.suffix != ".py" or file.parts[0] not in home:
        return []
    return [str(Path("tests", *home[file.parts[0]], f"test_{file.name}"))]


def selected(paths: list[str], root: Path = ROOT) -> list[str]:
    """The tests to run for changed files, each once, as far as they exist."""
    names = [*ALWAYS, *(name for path in paths for name in tests_of(path))]
    return [name for name in dict.fromkeys(names) if (root / name).is_file() and not name.startswith(TOO_LONG)]


def main() -> int:
    python = sys.executable
    binary = Path(python).parent
    commands = [
        [str(binary / "ruff"), "check", "."],
        [str(binary / "ruff"), "format", "--check", "."],
        [str(binary / "mypy")],
        [python, "-m", "pytest", "-q", "-x", *selected(changed())],
    ]
    for command in commands:
        print("$", Path(command[0]).name, *command[1:], flush=True)
        if subprocess.run(command, cwd=ROOT).returncode:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
