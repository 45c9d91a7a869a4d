"""Generated argument lists, configurations and run folders: no traceback, no hang, nothing written elsewhere.

    python tools/reliability/arguments.py --cases 10000          → results/reliability/arguments.json
    python tools/reliability/arguments.py --cases 200 --seed 7 --out /tmp/arguments.json

Hypothesis makes the words, whose options are those of each command's own parser. All commands run inside this process
through `main`, in a folder of their own. What takes long once the words are accepted (training, embedding, export,
serving a page) is replaced, except in one train command of fifty, which takes two steps. A fifth of the cases are
options of Python's RunConfig, which may raise UserError only. A case may use 20 seconds of processor time or two
minutes of time, and 8 GB of address space. An audit hook sees every file that Python opens for writing, moves or
removes.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import yaml
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from vcc_infuse.bank.bank import BankConfig
from vcc_infuse.cli.completion import parser_of
from vcc_infuse.cli.main import COMMANDS, main
from vcc_infuse.cli.parser import COMMAND_LINE, OPTIONS, types_of
from vcc_infuse.cli.registry import OURS
from vcc_infuse.errors import UserError
from vcc_infuse.run_config import PARTS, RunConfig, resolve
from vcc_infuse.training.trainer import Trainer
from vcc_infuse.utils.io import write_json

ROOT = Path(__file__).parents[2]
FAULTS = ("tracebacks", "errors_not_one_line", "written_outside")
CPU_SECONDS, SECONDS, ADDRESS_SPACE = 20, 120, 8 * 2**30
WRITES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.symlink", "os.link"}
TINY = "--data digits --labels 20 --preset scratch --model MLP --steps 2 --batch_size 2 --unlabeled_ratio 1".split()
QUIET = ["--progress", "false", "--report", "false"]
NUMBERS = [
    "0",
    "1",
    "2",
    "-1",
    "0.5",
    "1.5",
    "1e-3",
    "1e6",
    "1e30",
    "1e308",
    "1e400",
    "nan",
    "-inf",
    "99999999999999999999",
]
WORDS = [
    *("", " ", "null", "none", "None", "true", "maybe", "[1]", "[]", "{}", "{a: 1}", "ä\u2028", "\udcff", "a/b", "."),
    *("..", "/", "-", "--", "=", "%s", "$HOME", "cpu", "cuda", "digits", "run", "broken", "no.such.Class", "os.system"),
    *(".X", "x" * 300),
]
TOP = [*OPTIONS, *COMMAND_LINE]
CHOICES = [("bank", BankConfig)]
CHOICES += [(option, kind) for option, base in PARTS.items() for kind in OURS.values() if issubclass(kind, base)]
NAMES = [*TOP, *(f"{option}.{name}" for option, kind in CHOICES for name in types_of(kind))]
PARSERS = {name: parser_of(name)._actions for name in COMMANDS if name != "train"}
COMMAND_OPTIONS = {name: [word for one in actions for word in one.option_strings] for name, actions in PARSERS.items()}
PLACES = {name: sum(not one.option_strings for one in actions) for name, actions in PARSERS.items()}
values = st.one_of(
    st.sampled_from(NUMBERS), st.sampled_from(WORDS), st.sampled_from(sorted(OURS)), st.text(max_size=6),
    st.integers().map(str), st.floats().map(str),
)  # fmt: skip
plain: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=6),
    st.sampled_from([*NUMBERS, *WORDS, *OURS]),
)
nested = st.recursive(
    plain,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(st.sampled_from(["class_path", "init_args", *NAMES]), plain), inner, max_size=3),
    ),
    max_leaves=6,
)


ON_A_RUN = [
    "evaluate broken", "report broken", "predict broken images", "select broken --pool images", "train --resume broken"
]  # fmt: skip
FILES = [
    "model.json", "model.json", "summary.json", "metrics.jsonl", "selections.jsonl", "predictions.npz", "config.yaml",
    "gallery.npz",
]  # fmt: skip
SLOW = [
    "cli.embed.open_bank", "cli.export.export_model", "run.open_bank", "bank.sharding.frozen_network",
    "audit.make_encoder", "cli.completion.whole_command", "cli.doctor.examine",
]  # fmt: skip
SPOTS = ["run", "run", "broken", "digits", "missing", "coreset", "images", "images", "bash"]
DATA = defaultdict(
    lambda: [[]],
    embed=[["--data", "images"], ["--data", "images", "--shards", "bank"], []],
    suggest=[["--data", "images"], []],
)
"""Words without which a command does nothing."""


SAID = ("0 images;", "3 images;", "open http", "Ctrl-C ends", "labels are in", "ML backend for")
"""How lines begin that are no errors."""


class TimeUpError(Exception):
    """The time for one kind of case is used up."""


class HangError(BaseException):
    """A case took too long."""


@st.composite
def options(draw: Any, names: list[str], most: int = 4) -> list[str]:
    words = []
    for name in draw(st.lists(st.one_of(st.sampled_from(names), st.text(max_size=4)), max_size=most)):
        value = draw(values)
        words += draw(st.sampled_from([[name, value], [f"{name}={value}"], [name], [value]]))
    return words


@st.composite
def command_lines(draw: Any) -> list[str]:
    """The words of a command; those of `train` are a valid command with some options added."""
    command = draw(st.sampled_from([*COMMANDS, "train", "train", "train", "train", "tain"]))
    if command not in COMMAND_OPTIONS:
        return [
            command,
            *draw(st.sampled_from([TINY, TINY[:6], []])),
            *QUIET,
            *draw(options([f"--{name}" for name in NAMES])),
        ]
    spots = [draw(st.sampled_from(SPOTS)) for _ in range(PLACES[command])]
    return [command, *spots, *draw(st.sampled_from(DATA[command])), *draw(options(COMMAND_OPTIONS[command]))]


@st.composite
def config_files(draw: Any) -> tuple[list[str], bytes]:
    """A `train` command with a configuration file: a valid one with changes, or any text."""
    base = {"data": "digits", "labels": 20, "steps": 2, "preset": "scratch", "batch_size": 2}
    keys = st.one_of(st.sampled_from(NAMES), st.sampled_from([name for name in OPTIONS if "." not in name]), plain)
    tree = {**base, **draw(st.dictionaries(keys.filter(lambda key: key == key), nested, max_size=3))}
    text = draw(st.one_of(st.just(None), st.just(None), st.just(None), st.binary(max_size=40), st.text(max_size=40)))
    if text is None:
        text = yaml.dump(tree, Dumper=yaml.SafeDumper, allow_unicode=False)
    content = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    return ["train", "--config", "options.yaml", *QUIET, *draw(st.sampled_from([[], ["--model", "MLP"]]))], content


@st.composite
def configurations(draw: Any) -> dict[Any, Any]:
    """Options of a RunConfig: valid ones with changes."""
    keys: Any = st.sampled_from([name for name in OPTIONS if "." not in name])
    keys = plain if draw(st.integers(0, 15)) == 0 else keys
    base = {"data": "digits", "labels": 20, "preset": draw(st.sampled_from(["scratch", "frozen", "auto", "paper"]))}
    parts = st.one_of(nested, st.sampled_from(sorted(OURS)))
    return base | draw(st.dictionaries(keys.filter(lambda key: key == key), parts, max_size=4))


def build(options: dict[Any, Any]) -> int:
    """Everything that a RunConfig can be asked for."""
    config = RunConfig.from_options(options, trust_code=False)
    config = resolve(config, "scratch" if config.preset == "auto" else config.preset)
    config.to_yaml()
    RunConfig.from_yaml(config.to_yaml())
    return 0


@st.composite
def run_folders(draw: Any) -> tuple[list[str], str, bytes]:
    """A command on a run of which one file holds something else."""
    words = draw(st.sampled_from(ON_A_RUN)).split()
    words += ["--steps", "3", "--progress", "false"] if words[0] == "train" else []
    name = draw(st.sampled_from(FILES))
    whole = (Path("coreset") / name).read_bytes()
    if name.endswith(".json") and draw(st.booleans()):
        tree = json.loads(whole)
        for key in draw(st.lists(st.sampled_from(sorted(tree)), max_size=2, unique=True)):
            tree[key] = draw(nested.filter(is_json))
        return words, name, json.dumps(tree, default=str).encode()
    if draw(st.integers(0, 20)) == 0:
        return words, name, b'{"a":' * 5000 + b"1" + b"}" * 5000
    damaged = bytearray(whole)
    for _ in range(draw(st.integers(1, 4))):
        damaged[draw(st.integers(0, len(damaged) - 1))] = draw(st.integers(0, 255))
    return words, name, bytes(damaged[: draw(st.integers(0, len(damaged)))] if draw(st.booleans()) else damaged)


def is_json(value: Any) -> bool:
    """Whether JSON can hold it."""
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


class Counts:
    """What happened to the cases."""

    def __init__(self, sandbox: Path, end: float) -> None:
        self.end = end
        self.sandbox, self.outside, self.watching = str(sandbox), Counter[str](), False
        self.cases, self.status = Counter[str](), Counter[str]()
        self.tracebacks, self.hangs, self.long_errors = Counter[str](), list[str](), Counter[str]()
        self.examples: dict[str, str] = {}
        sys.addaudithook(self.audit)

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Called by Python for every file."""
        if not self.watching or (event != "open" and event not in WRITES):
            return
        if event == "open" and not (
            isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        ):
            return
        path = arguments[0]
        if isinstance(path, str | bytes | os.PathLike):
            where = os.path.abspath(os.fsdecode(path))
            if not where.startswith((self.sandbox, "/dev/", "/proc/")) and "__pycache__" not in where:
                self.outside[f"{event} {where}"] += 1

    def run(self, kind: str, words: list[str], real: bool = False, work: Callable[[], int] | None = None) -> None:
        """One case, if there is time for it: a command, or other work in its place."""
        if time.monotonic() > self.end:
            raise TimeUpError
        out, err = io.StringIO(), io.StringIO()
        self.cases[f"{kind} {words[0]}"] += 1
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        signal.alarm(SECONDS)
        self.watching = True
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), replaced(real):
                status = work() if work else main(words)
        except UserError as fault:
            if work is None:
                raise
            status = 2
            print(fault, file=err)
        except HangError:
            self.hangs.append(" ".join(words))
            print("hang:", " ".join(words)[:300], file=sys.stderr)
            return
        except BaseException as fault:
            place = traceback.extract_tb(fault.__traceback__)[-1]
            self.note(self.tracebacks, f"{type(fault).__name__} in {Path(place.filename).name}:{place.name}", words)
            return
        finally:
            self.watching = False
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.alarm(0)
        self.status[str(status)] += 1
        lines = [
            line
            for line in err.getvalue().strip().split("\n")
            if line and not line.startswith(("warning:", "skipped ", *SAID))
        ]
        if status == 2 and len(lines) != 1:
            self.note(self.long_errors, f"{len(lines)} lines: {lines[0][:60] if lines else ''}", words)

    def note(self, counter: Counter[str], what: str, words: list[str]) -> None:
        """Count a fault, and keep the first command that shows it."""
        counter[what] += 1
        self.examples.setdefault(what, " ".join(words)[:300])


class Idle:
    """Nothing is computed beside the labeling page."""

    def __init__(self, *_: Any) -> None:
        self.start = self.submit = self.close = lambda *_: None


@contextlib.contextmanager
def replaced(real: bool) -> Any:
    """Without what takes long, unless `real`."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise UserError("accepted; not done here")

    def fit(self: Trainer, data: Any, **_: Any) -> dict[str, Any]:
        self.prepare(data)
        return {}

    with contextlib.ExitStack() as stack:
        for target in SLOW:
            stack.enter_context(patch(f"vcc_infuse.{target}", refuse))
        stack.enter_context(patch("vcc_infuse.training.auto.training_seconds", lambda *_: 0.0))
        stack.enter_context(patch("vcc_infuse.label.launch.Processes", Idle))
        stack.enter_context(patch("uvicorn.Server.run", lambda *_: None))
        stack.enter_context(patch("webbrowser.open", lambda *_: None))
        if not real:
            stack.enter_context(patch.object(Trainer, "fit", fit))
        yield


def prepare(sandbox: Path) -> None:
    """Two finished runs, a folder of images and cached digits, so that a case takes milliseconds."""
    import numpy as np
    import sklearn.datasets
    from PIL import Image

    digits = sklearn.datasets.load_digits(return_X_y=True)
    sklearn.datasets.load_digits = lambda **_: digits
    for name, more in (("run", []), ("coreset", ["--selector", "INFUSE", "--selector.keep", "0.5"])):
        main(["train", *TINY, "--progress", "false", "--out", name, *more])
    Path("images").mkdir()
    for i in range(3):
        Image.fromarray(np.full((8, 8), 80 * i, np.uint8)).save(f"images/{i}.png")
    Path("broken").mkdir()


def spoil(name: str, content: bytes) -> None:
    """A copy of the run `coreset` with other content in one file."""
    shutil.rmtree("broken")
    shutil.copytree("coreset", "broken")
    (Path("broken") / name).write_bytes(content)


def tidy(sandbox: Path) -> None:
    """Remove what a case has written."""
    for path in sandbox.iterdir():
        if path.name not in ("run", "coreset", "images", "broken", "cache", "options.yaml"):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def search(counts: Counts, sandbox: Path, cases: int, number: int, minutes: float) -> None:
    """Two fifths argument lists, one fifth each configuration files, RunConfigs and run folders."""
    every = settings(
        database=None, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck), max_examples=1
    )
    done = Counter[str]()

    @seed(number)
    @settings(every, max_examples=cases * 2 // 5)
    @given(command_lines())
    def lists(words: list[str]) -> None:
        done["lists"] += 1
        counts.run("words", words, real=done["lists"] % 50 == 0)
        tidy(sandbox)

    @seed(number)
    @settings(every, max_examples=cases // 5)
    @given(config_files())
    def files(case: tuple[list[str], bytes]) -> None:
        done["files"] += 1
        Path("options.yaml").write_bytes(case[1])
        counts.run("config", case[0], real=done["files"] % 50 == 0)
        tidy(sandbox)

    @seed(number)
    @settings(every, max_examples=cases // 5)
    @given(configurations())
    def configs(options: dict[Any, Any]) -> None:
        counts.run("python", ["RunConfig", repr(options)], work=lambda: build(options))

    @seed(number)
    @settings(every, max_examples=cases - cases * 2 // 5 - 2 * (cases // 5))
    @given(run_folders())
    def folders(case: tuple[list[str], str, bytes]) -> None:
        spoil(*case[1:])
        counts.run("folder", case[0], real=True)
        tidy(sandbox)

    for part in (lists, files, configs, folders):
        counts.end = time.monotonic() + 60 * minutes / 4
        with contextlib.suppress(TimeUpError):
            part()


def stop(*_: Any) -> None:
    """The handler of both timers."""
    raise HangError


def run(cases: int, number: int = 0, minutes: float = math.inf) -> dict[str, Any]:
    """Everything, in a temporary folder, a quarter of the time for each kind of case; returns the counts."""
    began, before = time.perf_counter(), os.getcwd()
    with tempfile.TemporaryDirectory(prefix="arguments-") as folder, patch.dict(os.environ, {"HOME": folder}):
        sandbox = Path(folder).resolve()
        os.environ["VCC_INFUSE_CACHE"] = str(sandbox / "cache")
        os.chdir(sandbox)
        (sandbox / "cache").mkdir()
        tempfile.tempdir = str(sandbox / "cache")
        handlers = [(name, signal.signal(name, stop)) for name in (signal.SIGPROF, signal.SIGALRM)]
        try:
            prepare(sandbox)
            counts = Counts(sandbox, 0.0)
            search(counts, sandbox, cases, number, minutes)
        finally:
            os.chdir(before)
            for name, handler in handlers:
                signal.signal(name, handler)
            os.environ.pop("VCC_INFUSE_CACHE")
            tempfile.tempdir = None
    found = counts.tracebacks, counts.long_errors, counts.outside
    return {
        "command": f"python tools/reliability/arguments.py --cases {cases} --seed {number} --minutes {minutes}",
        "cases": counts.cases.total(), "cases_by_kind": dict(sorted(counts.cases.items())),
        "exit_status": dict(sorted(counts.status.items())), "hangs": len(counts.hangs), "hanging": counts.hangs[:10],
        **{name: counter.total() for name, counter in zip(FAULTS, found, strict=True)},
        "kinds": {what: [n, counts.examples.get(what, "")] for c in found for what, n in c.most_common(60)},
        "seconds": round(time.perf_counter() - began),
    }  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=ROOT / "results/reliability/arguments.json")
    parser.add_argument("--minutes", type=float, default=math.inf, help="stop after this time, with fewer cases")
    chosen = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    found = run(chosen.cases, chosen.seed, chosen.minutes)
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    write_json(chosen.out, found)
    print({name: found[name] for name in ("cases", "tracebacks", "hangs", "errors_not_one_line", "written_outside")})
