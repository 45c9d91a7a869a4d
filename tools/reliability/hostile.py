"""Hostile files through the commands: does anything run, reach outside, end in a traceback, or take the memory?

    python tools/reliability/hostile.py [--only WORD] [--every N] [--out results/reliability/hostile.json]

The checksums of a changed run are made to fit: a case that they stop would show nothing, and counts as a failure.
Each case runs in a process of its own, forked after the library is loaded. An audit hook watches what Python opens,
starts and connects to; a payload that runs creates a file. Memory is the peak of a case above that of a harmless one.
"""

import argparse
import csv
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

from hostile_cases import Case, Place, copy_run, every_case, images, seal

from vcc_infuse.cli.main import main as command
from vcc_infuse.errors import UserError

SECONDS = 120
STARTS = ("os.system", "subprocess.Popen", "os.exec", "os.posix_spawn", "pty.spawn")
CONNECTS = ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "urllib.Request")
PARTS = "executed", "outside", "traceback", "hang", "stopped_by_checksum"


def watch(place: Place, seen: list[str]) -> None:
    """Note what a case does that it must not."""

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in STARTS and not str(arguments[0]).endswith(("ldconfig", "gcc", "uname")):
            seen.append("executed")
        elif event in CONNECTS:
            seen.append("outside")
            raise OSError("no network here")
        elif event in ("open", "os.listdir", "os.scandir") and str(arguments[0]).startswith(str(place.outside)):
            seen.append("outside")

    sys.addaudithook(hook)


def in_child(case: Case, place: Place, output: Path) -> None:
    """Run a case and write what was seen."""
    signal.alarm(SECONDS)
    os.chdir(place.folder)
    log = os.open(output.with_suffix(".log"), os.O_CREAT | os.O_WRONLY)
    os.dup2(log, 1)
    os.dup2(log, 2)
    seen: list[str] = []
    words = case[2](place)
    seal(place.run)
    sys.path.append(str(place.folder / "lib"))
    watch(place, seen)
    try:
        if callable(words):
            words()
        else:
            command(words)
    except UserError:
        pass
    except BaseException:
        seen.append("traceback")
        traceback.print_exc()
    output.write_text(json.dumps(seen))
    sys.stdout.flush()
    sys.stderr.flush()


def run_case(case: Case, run: Path) -> tuple[list[str], int, str]:
    """What was seen, the peak memory in bytes, and what was printed."""
    root = Path(tempfile.mkdtemp(prefix="hostile-"))
    try:
        place = Place(root / "work", copy_run(run, root / "run"), root / "executed", root / "outside")
        (place.folder / "lib").mkdir(parents=True)
        place.outside.mkdir()
        (place.outside / "secret.pth").write_bytes(b"secret")
        (place.folder / "lib" / "evil.py").write_text(f"open({str(place.canary)!r}, 'w')\nclass X: pass\n")
        output = root / "seen.json"
        if case[0].startswith("module"):
            seen, peak = run_module(case, place), 0
        else:
            seen, peak = forked(case, place, output)
        seen += ["executed"] if place.canary.exists() or list(root.glob("*slip*")) else []
        seen += checked(place)
        log = output.with_suffix(".log")
        return seen, peak, log.read_text(errors="replace") if log.exists() else ""
    finally:
        subprocess.run(["rm", "-rf", str(root)], check=True)  # Python cannot remove folders 3,000 deep


def forked(case: Case, place: Place, output: Path) -> tuple[list[str], int]:
    child = os.fork()
    if child == 0:
        in_child(case, place, output)
        os._exit(0)
    _, status, used = os.wait4(child, 0)
    if output.exists():
        return json.loads(output.read_text()), used.ru_maxrss * 1024
    return [
        "hang" if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM else "traceback"
    ], used.ru_maxrss * 1024


def run_module(case: Case, place: Place) -> list[str]:
    """A new Python, because the library is loaded here already."""
    words = case[2](place)
    assert not callable(words)
    done = subprocess.run([sys.executable, *words], cwd=place.folder, capture_output=True, text=True, check=False)
    return ["traceback"] if "Traceback" in done.stderr else []


def checked(place: Place) -> list[str]:
    """Pages and tables that a browser or a spreadsheet would run."""
    found = []
    page, table = place.folder / "report.html", place.folder / "out.csv"
    if page.exists():
        text = page.read_text(errors="replace")
        policy = text.partition("Content-Security-Policy")[2].partition(">")[0]
        found += (
            ["executed"] if "<img src=x" in text or "<svg onload" in text or "unsafe" in policy or not policy else []
        )
    if table.exists():
        with open(table, newline="", errors="surrogateescape") as file:
            cells = [cell for row in csv.reader(file) for cell in row]
        found += (
            ["executed"]
            if any(cell.startswith(("=", "+", "-", "@", "\t", "\r")) and not number(cell) for cell in cells)
            else []
        )
    return found


def number(cell: str) -> bool:
    try:
        return float(cell) == float(cell)
    except ValueError:
        return False


def base_run(folder: Path) -> Path:
    words = "train --data digits --labels 40 --preset scratch --selector INFUSE --steps 2 --batch_size 4"
    assert command([*words.split(), "--unlabeled_ratio", "1", "--progress", "false", "--out", str(folder / "run")]) == 0
    return folder / "run"


def harmless(place: Place) -> list[str]:
    return ["predict", str(place.run), str(images(place.folder))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only cases whose kind or name contains this")
    parser.add_argument("--every", type=int, default=1, help="only every N-th case")
    parser.add_argument("--out", default="results/reliability/hostile.json")
    options = parser.parse_args()
    out = Path(options.out).resolve()
    kinds: dict[str, Counter[str]] = {}
    failures, highest = [], 0
    with tempfile.TemporaryDirectory(prefix="hostile-cache-") as cache:
        os.environ["VCC_INFUSE_CACHE"] = cache
        run = base_run(Path(cache))
        normal = run_case(("harmless", "predict", harmless), run)[1]
        cases = [case for case in every_case() if options.only in f"{case[0]} {case[1]}"][:: options.every]
        for case in cases:
            print(f"{len(failures)} {case[0]}: {case[1]}", file=sys.stderr, flush=True)
            seen, peak, log = run_case(case, run)
            seen += ["stopped_by_checksum"] if re.search("damaged or was changed|checksum differs", log) else []
            above = max(0, peak - normal)
            highest = max(highest, above)
            count = kinds.setdefault(case[0], Counter())
            count.update({"cases": 1, **dict.fromkeys(seen, 1)})
            count["peak_mb_above_normal"] = max(count["peak_mb_above_normal"], above >> 20)
            if seen or above > 2**30:
                failures.append(
                    {"case": " ".join(case[:2]), "seen": sorted(set(seen)), "mb": above >> 20, "end": log[-300:]}
                )
                print(f"{case[0]}: {case[1]}: {', '.join(seen)} {above >> 20} MB\n{log[-600:]}", flush=True)
    total = {part: sum(count[part] for count in kinds.values()) for part in ("cases", *PARTS)}
    found = {"command": " ".join(["python", *sys.argv]), **total, "peak_mb_above_normal": highest >> 20,
             "normal_mb": normal >> 20, "kinds": {kind: dict(count) for kind, count in kinds.items()},
             "failures": failures}  # fmt: skip
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    print({key: value for key, value in found.items() if key not in ("kinds", "failures")})
    return int(bool(failures))


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.exit(main())
