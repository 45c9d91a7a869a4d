"""The hostile files of hostile.py: each case is a kind, a name, and a function that fills a folder and returns words.

`Place.canary` is the file that a payload creates when it runs; `Place.outside` is a folder that nothing may open.
"""

import hashlib
import io
import json
import os
import pickle
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tifffile
from PIL import Image

from vcc_infuse.utils.manifest import NAME, publish

GIGA = 2**30
HTML = "<img src=x onerror=alert(1)><script>alert(2)</script>"
NAMES = [
    "=cmd|' /C calc'!A0",
    "+1+1",
    "-2+3",
    "@SUM(A1)",
    HTML,
    "'\"><svg onload=alert(3)>",
    "{{7*7}}",
    "%{x}",
    "a\nb",
    "\u2028",
]


class Place(NamedTuple):
    """Where a case may write, and what must stay untouched."""

    folder: Path
    run: Path
    canary: Path
    outside: Path


Make = Callable[[Place], list[str] | Callable[[], Any]]
Case = tuple[str, str, Make]
SMALL = "--labels 40 --preset scratch --steps 1 --batch_size 2 --unlabeled_ratio 1 --progress false"


def every_case() -> Iterator[Case]:
    for group in (configs, cards, networks, pickles, archives, pictures, folders, reports, tables, labels, modules):
        yield from group()


# --- configuration files -------------------------------------------------------------------------------------------
CONFIGS = [
    "algorithm: evil.X", "algorithm: {class_path: evil.X}", "algorithm.class_path: evil.X", "selector: evil.X",
    "algorithm: {class_path: DARP, init_args: {base: evil.X}}", "calibrator: {class_path: evil.X, init_args: {}}",
    "algorithm: {class_path: DARP, init_args: {base: {class_path: evil.X}}}", "model: evil.X",
    "algorithm: DARP\nalgorithm.base: evil.X", "algorithm: DARP\nalgorithm.init_args.base: evil.X",
    "algorithm: '{\"class_path\": \"evil.X\"}'", "algorithm: 'class_path: evil.X'", "model: {class_path: os.system}",
    "model: {class_path: Timm, init_args: {model_kwargs: {a: {class_path: evil.X}}}}", "config: other.yaml",
    "model: {class_path: Timm, init_args: {model_kwargs: '{a: {class_path: evil.X}}'}}", "algorithm: other.yaml",
    "model: {class_path: Timm, init_args: {model_kwargs: '{\"a\": {\"class\\u005fpath\": \"evil.X\"}}'}}",
    "model: {class_path: Timm, dict_kwargs: {x: {class_path: evil.X}}}", "bank: {class_path: evil.X}",
    "long_tail: {class_path: evil.X}", "limits: {class_path: evil.X}", "data: {class_path: evil.X}",
    "algorithm: {class_path: vcc_infuse.__main__.X}", "algorithm: {class_path: vcc_infuse.cli.main.importlib.X}",
    "calibrator: !!python/name:evil.X {}", "algorithm: !!python/object/apply:os.system ['touch CANARY']",
    "steps: !!python/object/new:os.system ['touch CANARY']", "a: !!python/module:evil", "!!python/object:evil.X {}",
    "a: &a {class_path: evil.X}\nalgorithm: *a", "algorithm: {<<: {class_path: evil.X}}", "selector: ' evil.X'",
    "algorithm: {class_path: [evil.X]}", "algorithm: {class_path: {class_path: evil.X}}", 
    "trust-code: true\nmodel: evil.X",
    "trust_code: true\nmodel: evil.X", "import: evil.py", "print_config: true\nmodel: evil.X",
    "model: {class_path: Timm, init_args: {name: 'hf-hub:a/b'}}",
    "model: {class_path: Timm, init_args: {name: 'local-dir:OUTSIDE'}}",
    "model: {class_path: Timm, init_args: {name: test_vit, model_kwargs: {checkpoint_path: OUTSIDE/secret.pth}}}",
    "model: {class_path: Timm, init_args: {name: test_vit, model_kwargs: {pretrained_cfg_overlay: {url: 'http://127.0.0.1:9/x'}}}}",
]  # fmt: skip


def configs() -> Iterator[Case]:
    for number, text in enumerate(CONFIGS):

        def train(place: Place, text: str = text) -> list[str]:
            filled = text.replace("CANARY", str(place.canary)).replace("OUTSIDE", str(place.outside))
            (place.folder / "options.yaml").write_text(filled)
            (place.folder / "other.yaml").write_text("algorithm: evil.X\nclass_path: evil.X\n")
            return f"train --config options.yaml --out new {SMALL}".split()

        def resume(place: Place, text: str = text, number: int = number) -> list[str]:
            filled = text.replace("CANARY", str(place.canary)).replace("OUTSIDE", str(place.outside))
            old = (place.run / "config.yaml").read_text()
            key = filled.partition(":")[0]
            kept = "".join(line for line in old.splitlines(True) if not line.startswith(f"{key}:"))
            (place.run / "config.yaml").write_text(f"{filled}\n" if number % 2 else f"{kept}\n{filled}\n")
            return ["train", "--resume", str(place.run), "--steps", "3", "--force"]

        yield "config.yaml", f"train {number}", train
        if number % 3 == 0:
            yield "config.yaml", f"resume {number}", resume


# --- model.json ----------------------------------------------------------------------------------------------------
COMMANDS = {
    "predict": lambda place: ["predict", str(place.run), str(images(place.folder))],
    "evaluate": lambda place: ["evaluate", str(place.run)],
    "select": lambda place: ["select", str(place.run), "--pool", str(images(place.folder))],
    "calibrate": lambda place: ["calibrate", str(place.run), "--data", "digits"],
    "export": lambda place: ["export", str(place.run), "-o", str(place.folder / "model.pt2")],
}
CLASSES = ["evil.X", "os.system", "subprocess.Popen", "builtins.eval", "vcc_infuse.__main__.main", "torch.load",
           "torch.hub.load", "vcc_infuse.cli.main.main", "..evil.X", "evil",
           "vcc_infuse.utils.io.os.system"]  # fmt: skip


def images(folder: Path) -> Path:
    target = folder / "images"
    target.mkdir(exist_ok=True)
    Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).save(target / "plain.png")
    return target


def changed(place: Place, part: str, described: dict[str, Any]) -> None:
    card = json.loads((place.run / "model.json").read_text())
    (place.run / "model.json").write_text(json.dumps(card | {part: described}))


def cards() -> Iterator[Case]:
    for command, words in COMMANDS.items():
        for number, path in enumerate(CLASSES):

            def make(place: Place, path: str = path, words: Any = words, number: int = number) -> list[str]:
                arguments = {"command": f"touch {place.canary}"} if number % 2 else {}
                nested = {"class_path": "vcc_infuse.models.backbone.Embedded", "init_args": {
                    "encoder": {"class_path": path, "init_args": {}},
                    "layers": {"class_path": path, "init_args": {}}}}  # fmt: skip
                described = {"class_path": path, "init_args": arguments}
                changed(
                    place, "calibrator" if number % 3 == 1 else "backbone", nested if number % 3 == 2 else described
                )
                return words(place)

            yield "class path in model.json", f"{command} {path}", make


NETWORKS: list[dict[str, Any]] = [
    {"name": "hf-hub:somebody/network"}, {"name": "hf_hub:somebody/network"}, {"name": "local-dir:OUTSIDE"},
    {"name": "test_vit@hf-hub:somebody/x"}, {"name": "timm/test_vit"}, {"name": "http://127.0.0.1:9/x"},
    {"name": "../../OUTSIDE"}, {"name": "test_vit.hf-hub:a/b"},
    *({"name": "test_vit", "model_kwargs": {key: value}} for key, value in (
        ("pretrained", True), ("pretrained_cfg", {"url": "http://127.0.0.1:9/x"}), ("pretrained_cfg", "hf-hub:a/b"),
        ("pretrained_cfg_overlay", {"url": "http://127.0.0.1:9/x"}), ("checkpoint_path", "OUTSIDE/secret.pth"),
        ("pretrained_cfg_overlay", {"file": "OUTSIDE/secret.pth"}), ("cache_dir", "OUTSIDE"))),
    {"name": "test_vit", "weights": "OUTSIDE/secret.pth"}, {"name": "test_vit", "weights": "timm"},
]  # fmt: skip


def networks() -> Iterator[Case]:
    for number, arguments in enumerate(NETWORKS):
        for command in ("predict", "evaluate"):

            def make(place: Place, arguments: dict[str, Any] = arguments, command: str = command) -> list[str]:
                text = json.dumps(arguments).replace("OUTSIDE", str(place.outside))
                changed(place, "backbone", {"class_path": "vcc_infuse.Timm", "init_args": json.loads(text)})
                return COMMANDS[command](place)

            yield "network in model.json", f"{command} {number}", make


# --- pickles -------------------------------------------------------------------------------------------------------
class Payload:
    """Creates the canary when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.canary}",)


def pickles() -> Iterator[Case]:
    def replaced(name: str, words: Callable[[Place], list[str]]) -> Make:
        def make(place: Place) -> list[str]:
            content = pickle.dumps(Payload(place.canary))
            if name.endswith(".npz"):
                with open(place.run / name, "wb") as file:
                    np.savez(file, predicted=np.array([Payload(place.canary)], dtype=object))
            else:
                (place.run / name).write_bytes(content)
            return words(place)

        return make

    for command in ("predict", "evaluate", "select", "export"):
        yield "pickle", f"model.safetensors {command}", replaced("model.safetensors", COMMANDS[command])
    for name in (
        "model.json",
        "summary.json",
        "metrics.jsonl",
        "selections.jsonl",
        "predictions.npz",
        "gallery.npz",
        "config.yaml",
    ):
        yield "pickle", f"{name} report", replaced(name, lambda place: ["report", str(place.run)])
    for suffix in (".pth", ".pt", ".bin", ".safetensors"):

        def weights(place: Place, suffix: str = suffix) -> list[str]:
            file = place.folder / f"weights{suffix}"
            file.write_bytes(pickle.dumps({"state_dict": Payload(place.canary)}))
            words = f"train --data digits --model Timm --model.name test_vit --model.weights {file} --labels 40"
            return [*words.split(), "--preset", "finetune", "--steps", "1", "--size", "32", "--out", "new"]

        yield "pickle", f"weights{suffix}", weights

    def checkpoint(place: Place) -> list[str]:
        (place.run / "summary.json").unlink(missing_ok=True)
        for file in list((place.run / "checkpoints").glob("step-*.pt")):
            file.write_bytes(pickle.dumps(Payload(place.canary)))
            record = json.loads(file.with_suffix(".json").read_text())
            digest = hashlib.sha256(file.read_bytes()).hexdigest()
            file.with_suffix(".json").write_text(json.dumps(record | {"sha256": digest}))
        return ["train", "--resume", str(place.run)]

    yield "pickle", "checkpoint with a right checksum", checkpoint


# --- archives and pictures -----------------------------------------------------------------------------------------
def png(width: int = 8, height: int = 8, depth: int = 8, kind: int = 2, extra: bytes = b"", rows: int = 8) -> bytes:
    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    pixels = zlib.compress(bytes(rows * (1 + 3 * width * depth // 8)) if width < 10_000 else bytes(100))
    header = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + extra + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def text_chunk(name: bytes, size: int) -> bytes:
    data = b"key\0\0" + zlib.compress(bytes(size), 9)
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def bomb(path: Path, entries: dict[str, tuple[bytes, int]]) -> Path:
    """A zip whose entries are content and a number of zeros, written in pieces."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        for name, (content, zeros) in entries.items():
            with file.open(name, "w", force_zip64=True) as entry:
                entry.write(content)
                for _ in range(zeros // 2**22):
                    entry.write(bytes(2**22))
    return path


def archives() -> Iterator[Case]:
    def with_zip(fill: Callable[[Path, Place], Path], command: str) -> Make:
        def make(place: Place) -> list[str]:
            path = fill(place.folder / "archive.zip", place)
            if command == "train":
                return f"train --data {path} --size 8 --out new {SMALL}".replace("--labels 40", "--labels 2").split()
            return {
                "predict": ["predict", str(place.run), str(path)],
                "select": ["select", str(place.run), "--pool", str(path)],
            }[command]

        return make

    good = {"cat/a.png": (png(), 0), "dog/a.png": (png(), 0), "cat/b.png": (png(), 0), "dog/b.png": (png(), 0)}
    slip = {
        name: (png(), 0)
        for name in ("../../slip.png", "/tmp/slip.png", "cat/../../../slip.png", "C:\\slip.png", "..\\slip.png")
    }
    fills: dict[str, Callable[[Path, Place], Path]] = {
        "1.5 GB entry": lambda path, _: bomb(path, good | {"cat/bomb.png": (png(), 3 * GIGA // 2)}),
        "1.5 GB entry that is no image": lambda path, _: bomb(path, good | {"dog/bomb.jpg": (b"", 3 * GIGA // 2)}),
        "names outside": lambda path, _: bomb(path, good | slip),
        "many names": lambda path, _: bomb(path, good | {f"cat/{'d/' * 500}{i}.png": (png(), 0) for i in range(20)}),
        "zip in a zip": lambda path, _: bomb(
            path, good | {"cat/inner.png": (bomb(path.with_name("i.zip"), good).read_bytes(), 0)}
        ),
        "link": link_in_zip, "declared small": lying_zip,
    }  # fmt: skip
    for name, fill in fills.items():
        for command in ("predict", "select", "train"):
            yield "zip", f"{name} {command}", with_zip(fill, command)


def link_in_zip(path: Path, place: Place) -> Path:
    bomb(path, {"cat/a.png": (png(), 0), "dog/a.png": (png(), 0)})
    entry = zipfile.ZipInfo("cat/link.png")
    entry.create_system, entry.external_attr = 3, 0o120777 << 16
    with zipfile.ZipFile(path, "a") as file:
        file.writestr(entry, str(place.outside / "secret.pth"))
    return path


def lying_zip(path: Path, _: Place) -> Path:
    """An entry that says it unpacks to 100 bytes, and unpacks to 64 MB."""
    bomb(path, {"cat/a.png": (png(), 0), "dog/a.png": (png(), 0), "cat/bomb.png": (png(), 2**26)})
    content, size = path.read_bytes(), struct.pack("<I", 2**26 + len(png()))
    path.write_bytes(content.replace(size, struct.pack("<I", 100)))
    return path


def tiff(width: int, height: int, pages: int = 1) -> bytes:
    """A TIFF whose tags say any size, of pages in a loop if there are several."""
    tags = [
        (256, 4, width),
        (257, 4, height),
        (258, 3, 16),
        (259, 3, 1),
        (262, 3, 1),
        (273, 4, 8),
        (277, 3, 1),
        (278, 4, height),
        (279, 4, 64),
    ]
    table = struct.pack("<H", len(tags)) + b"".join(
        struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in tags
    )
    return b"II*\0" + struct.pack("<I", 8) + table + struct.pack("<I", 8 if pages > 1 else 0) + bytes(64)


def pictures() -> Iterator[Case]:
    stack = io.BytesIO()
    tifffile.imwrite(stack, np.zeros((16, 4096, 4096), np.uint8), compression="zlib", metadata={"axes": "CYX"})
    gif = (
        b"GIF89a"
        + struct.pack("<HH", 65535, 65535)
        + b"\0\0\0,"
        + struct.pack("<HHHH", 0, 0, 65535, 65535)
        + b"\0\x02\x02L\x01\0;"
    )
    bmp = b"BM" + struct.pack("<IHHIIiiHHIIIIII", 100, 0, 0, 54, 40, 60000, 60000, 1, 24, 0, 0, 0, 0, 0, 0)
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(touch CANARY) (w) file\nshowpage\n"
    samples = {
        "wide.png": png(60_000, 60_000), "tall.png": png(1, 2**31 - 1), "large.png": png(9_400, 9_400),
        "deep16.png": png(20_000, 20_000, 16), "rgba16.png": png(8_000, 8_000, 16, 6),
        "palette.png": png(13_000, 13_000, 8, 3),
        "rgba.png": png(8_190, 8_190, 8, 6), "zero.png": png(0, 0), "text.png": png(extra=text_chunk(b"zTXt", 2**29)),
        "profile.png": png(extra=text_chunk(b"iCCP", 2**29)), "text2.png": png(extra=text_chunk(b"iTXt", 2**28) * 3),
        "wide.tif": tiff(60_000, 60_000), "loop.tif": tiff(8, 8, 2), "line.tif": tiff(2**31 - 1, 1),
        "stack.tif": stack.getvalue(),
        "wide.gif": gif, "wide.bmp": bmp, "wide.ppm": b"P6 99999 99999 255\n" + bytes(50),
        "wide.pgm": b"P5 99999 99999 65535\n",
        "script.png": eps, "script.jpg": eps, "svg.png": b"<svg xmlns='http://www.w3.org/2000/svg'><image href='http://127.0.0.1:9/x'/></svg>",
        "photoshop.png": b"8BPS" + struct.pack(">H6xHIIHH", 1, 3, 30000, 30000, 8, 3) + bytes(12),
        "fits.png": b"SIMPLE  =                    T" + bytes(2880),
        "webp.webp": b"RIFF\xff\xff\xff\x7fWEBPVP8X\n\0\0\0\0\0\0\0\xff\xff\xff\xff\xff\xff",
        "cut.jpg": b"\xff\xd8\xff\xe0\0\x10JFIF",
        "pickle.png": b"\x80\x04cos\nsystem\n(S'touch CANARY'\ntR.",
    }  # fmt: skip
    for name, content in samples.items():

        def make(place: Place, name: str = name, content: bytes = content) -> list[str]:
            (images(place.folder) / name).write_bytes(content.replace(b"CANARY", str(place.canary).encode()))
            return ["predict", str(place.run), str(place.folder / "images"), "-o", str(place.folder / "out.csv")]

        yield "image", name, make

    def tail(place: Place) -> list[str]:
        file = images(place.folder) / "tail.png"
        file.write_bytes(png())
        os.truncate(file, 3 * GIGA // 2)
        return ["predict", str(place.run), str(place.folder / "images")]

    yield "image", "PNG with a tail of 1.5 GB", tail


# --- folders, reports, tables, labels ------------------------------------------------------------------------------
def folders() -> Iterator[Case]:
    def deep(place: Place) -> None:
        here = os.getcwd()
        images(place.folder)
        os.chdir(place.folder / "images")
        for _ in range(3000):
            os.mkdir("d")
            os.chdir("d")
        os.chdir(here)

    def loop(place: Place) -> None:
        (images(place.folder) / "again").symlink_to(place.folder / "images")

    def pipe(place: Place) -> None:
        os.mkfifo(images(place.folder) / "pipe.png")

    def device(place: Place) -> None:
        (images(place.folder) / "zero.png").symlink_to("/dev/zero")

    def names(place: Place) -> None:
        for name in NAMES:
            (images(place.folder) / f"{name.replace('/', '-')}.png").write_bytes(png())

    for fill in (deep, loop, pipe, device, names):
        for command in ("predict", "select", "train"):

            def make(place: Place, fill: Callable[[Place], None] = fill, command: str = command) -> list[str]:
                fill(place)
                if command == "train":
                    return f"train --data {place.folder / 'images'} --size 8 --out new {SMALL}".split()
                return COMMANDS[command](place)

            yield "folder", f"{fill.__name__} {command}", make


def reports() -> Iterator[Case]:
    for name in NAMES:
        for where in ("step", "classes", "config", "versions"):

            def make(place: Place, name: str = name, where: str = where) -> list[str]:
                if where == "step":
                    (place.run / "summary.json").unlink()
                    line = (place.run / "metrics.jsonl").read_text().splitlines()[-1]
                    (place.run / "metrics.jsonl").write_text(
                        json.dumps(json.loads(line) | {"step": name, "evaluated_on": name}) + "\n"
                    )
                elif where == "config":
                    (place.run / "config.yaml").write_text(name)
                else:
                    summary = json.loads((place.run / "summary.json").read_text())
                    value = {name: name} if where == "versions" else [name] * 10
                    (place.run / "summary.json").write_text(json.dumps(summary | {where: value}))
                return ["report", str(place.run), "-o", str(place.folder / "report.html")]

            yield "report", f"{where} {name!r}", make


def tables() -> Iterator[Case]:
    for name in NAMES:
        for command in ("predict", "select"):

            def make(place: Place, name: str = name, command: str = command) -> list[str]:
                changed(place, "classes", [f"{name}{i}" for i in range(10)])  # type: ignore[arg-type]
                (images(place.folder) / f"{name.replace('/', '-')}.png").write_bytes(png())
                return [*COMMANDS[command](place), "-o", str(place.folder / "out.csv")]

            yield "table", f"{command} {name!r}", make
    files = {"outside.csv": "file,label\n../outside/secret.png,a\nplain.png,b\n",
             "formula.csv": "file,label\nplain.png,=1+1\n",
             "field.csv": "file,label\nplain.png," + "x" * 10**6, "deep.json": "[" * 10**5, "address.csv": "file,label\nhttp://127.0.0.1:9/x.png,a\n",
             "number.json": '[{"file": "plain.png", "label": 1e999}]'}  # fmt: skip
    for name, text in files.items():

        def labeled(place: Place, name: str = name, text: str = text) -> list[str]:
            (place.folder / name).write_text(text)
            return f"train --data {images(place.folder)} --label_file {name} --size 8 --out new {SMALL}".split()

        yield "table", f"label file {name}", labeled


def labels() -> Iterator[Case]:
    for value in (10**9, 10**18, 2**63 - 1, -(2**63), 1e300, float("inf")):

        def make(place: Place, value: float = value) -> Callable[[], Any]:
            from vcc_infuse import SSLData

            return lambda: SSLData.from_arrays(np.zeros((4, 8, 8), np.uint8), np.array([0, 1, -1, value]))

        yield "array label", f"{value:g}", make


def modules() -> Iterator[Case]:
    for name in (
        "sklearn",
        "plotly",
        "torch",
        "yaml",
        "numpy",
        "timm",
        "PIL",
        "typing",
        "json",
        "argparse",
        "tqdm",
        "evil",
    ):

        def make(place: Place, name: str = name) -> list[str]:
            (place.folder / f"{name}.py").write_text(f"open({str(place.canary)!r}, 'w'); raise ImportError")
            return ["-m", "vcc_infuse", "list"]

        yield "module in the working directory", name, make


def seal(run: Path) -> None:
    """Write checksums that fit the changed files, as somebody who means harm would: they must not be what protects."""
    known = json.loads((run / NAME).read_text())["files"]
    there = {name: entry for name, entry in known.items() if (run / name).is_file()}
    logs = [name for name, entry in there.items() if entry.get("grows")]
    publish(run, {}, logs, existing=[name for name in there if name not in logs], dropped=known.keys() - there.keys())


def copy_run(run: Path, target: Path) -> Path:
    shutil.copytree(run, target)
    return target
