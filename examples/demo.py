"""Forty labels of handwritten digits, in a few minutes on a laptop: what the other 1,397 images add to them.

Run: python examples/demo.py [steps]     (`make demo` does it in a .venv of its own)
"""

import sys
import time

from sklearn.linear_model import LogisticRegression

import vcc_infuse
from vcc_infuse import INFUSE, load_ssl
from vcc_infuse.metrics import ece

STEPS, SEED = 600, 0


def scikit_learn(data):
    """Logistic regression on the pixels of the labeled images."""
    began = time.perf_counter()
    test = data.dataset.test
    rows = data.dataset.train.x[data.split.labeled]
    model = LogisticRegression(max_iter=1000).fit(rows.reshape(len(rows), -1) / 255, data.labeled_y)
    probs = model.predict_proba(test.x.reshape(len(test), -1) / 255)
    right = probs.argmax(1) == test.y
    return 1 - right.mean(), float(ece(probs.max(1), right)), time.perf_counter() - began


def train(data, steps, **parts):
    """Error, ECE of the calibrated confidence, and seconds of training and selecting."""
    print("training", *(part for name, part in parts.items() if name != "out"))
    options = {"steps": steps, "eval_every": max(1, steps // 4), "batch_size": 32, "seed": SEED}
    summary = vcc_infuse.train(data, preset="scratch", **options, **parts).summary
    return summary["error"], summary["ece_calibrated"], summary["seconds_train"] + summary["seconds_select"]


def main(steps):
    data = load_ssl("digits", labels=40, seed=SEED)
    out = time.strftime("runs/demo-%Y%m%d-%H%M%S")
    infuse = INFUSE(keep=0.4)
    rows = {
        "LogisticRegression (scikit-learn)": scikit_learn(data),
        "Supervised": train(data, steps, algorithm="Supervised"),
        "FlexMatch": train(data, steps, algorithm="FlexMatch"),
        "RobustVCC-FlexMatch": train(data, steps, algorithm="FlexMatch", calibrator="RobustVCC"),
        "VCC-INFUSE-FlexMatch": train(data, steps, algorithm="FlexMatch", calibrator="VCC", selector=infuse, out=out),
    }
    print(f"\nhandwritten digits, 40 labels, {len(data.split.pool):,} images in the pool, seed {SEED}\n")
    print(f"{'':<34} {'error':>8} {'ECE':>7} {'seconds':>8}")
    for name, (error, calibration, seconds) in rows.items():
        print(f"{name:<34} {100 * error:>6.1f} % {calibration:>7.3f} {seconds:>8.1f}")
    print("\nINFUSE trained on 40 % of the images, for 40 % of the steps. One seed proves nothing: docs/results.md.")
    print(f"report of the last run: {out}/report.html")
    print("your own photos:        vcc-infuse train --data photos --out runs/photos")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else STEPS)
