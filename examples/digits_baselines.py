"""Forty labels of handwritten digits: FixMatch, supervised training and scikit-learn's semi-supervised methods.

The same splits for all methods, several seeds, mean ± standard deviation and paired differences:

    python examples/digits_baselines.py --seeds 5 --out results/digits_baselines.md
"""

import argparse
from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.semi_supervised import LabelSpreading, SelfTrainingClassifier

from vcc_infuse import load_ssl, train


def error(method, data, seed, steps):
    options = {"steps": steps, "eval_every": steps, "seed": seed, "progress": False}
    return train(data, preset="scratch", algorithm=method, **options).summary["error"]


def scikit_learn(method, data):
    """The pool as flat vectors on the 0…16 scale of scikit-learn's own examples, −1 for hidden labels."""
    train, test = data.dataset.train, data.dataset.test
    y = np.full(len(train), -1)
    y[data.split.labeled] = data.labeled_y
    method.fit(train.x.reshape(len(train), -1) / 255 * 16, y)
    return float(np.mean(method.predict(test.x.reshape(len(test), -1) / 255 * 16) != test.y))


def errors(labels, seed, steps):
    data = load_ssl("digits", labels=labels, seed=seed)
    return {
        "Supervised": error("Supervised", data, seed, steps),
        "LabelSpreading, rbf 0.25 (scikit-learn)": scikit_learn(LabelSpreading(gamma=0.25, max_iter=200), data),
        "LabelSpreading, 10 neighbors (scikit-learn)": scikit_learn(
            LabelSpreading(kernel="knn", n_neighbors=10, max_iter=200), data
        ),
        "SelfTraining, logistic (scikit-learn)": scikit_learn(
            SelfTrainingClassifier(LogisticRegression(max_iter=1000)), data
        ),
        "FixMatch": error("FixMatch", data, seed, steps),
    }


def table(rows, labels, steps, command):
    ours = np.array([row["FixMatch"] for row in rows])
    lines = [
        f"Error on digits with {labels} labels, {len(rows)} seeds, {steps} steps of 64 labeled / 448 unlabeled.",
        "",
        f"    {command}",
        "",
        "| method | error %, mean ± std | FixMatch − this, mean ± std | per seed |",
        "|---|---|---|---|",
    ]
    for name in rows[0]:
        values = 100 * np.array([row[name] for row in rows])
        gap = 100 * ours - values
        each = " ".join(f"{v:.1f}" for v in values)
        spread = values.std(ddof=1) if len(values) > 1 else 0.0
        gap_spread = gap.std(ddof=1) if len(gap) > 1 else 0.0
        lines.append(f"| {name} | {values.mean():.2f} ± {spread:.2f} | {gap.mean():+.2f} ± {gap_spread:.2f} | {each} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--labels", type=int, default=40)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = []
    for seed in range(options.seeds):
        rows.append(errors(options.labels, seed, options.steps))
        print(f"seed {seed}:", ", ".join(f"{name} {100 * e:.1f} %" for name, e in rows[-1].items()), flush=True)
    out = f" --out {options.out}" if options.out else ""
    command = f"python examples/digits_baselines.py --seeds {options.seeds} --labels {options.labels}"
    text = table(rows, options.labels, options.steps, f"{command} --steps {options.steps}{out}")
    print(text)
    if options.out:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
