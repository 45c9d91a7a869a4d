"""Forty labels of handwritten digits, the scikit-learn way: SSLClassifier beside SelfTrainingClassifier.

python examples/sklearn_digits.py
"""

import sys

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.semi_supervised import SelfTrainingClassifier

from vcc_infuse import SSLClassifier


def hide(y, per_class, seed=0):
    """The labels with all but `per_class` of each class replaced by −1."""
    rng, shown = np.random.RandomState(seed), np.full_like(y, -1)
    for number in np.unique(y):
        rows = rng.permutation(np.flatnonzero(y == number))[:per_class]
        shown[rows] = number
    return shown


def main(steps):
    digits = load_digits()
    x, test_x, y, test_y = train_test_split(digits.images / 16, digits.target, stratify=digits.target, random_state=0)
    shown = hide(y, per_class=4)

    images = SSLClassifier(steps=steps, flip=False)  # a mirrored 2 is not a 2
    print(f"SSLClassifier, images:   accuracy {images.fit(x, shown).score(test_x, test_y):.3f}")

    flat, test_flat = x.reshape(len(x), -1), test_x.reshape(len(test_x), -1)
    features = make_pipeline(StandardScaler(), SSLClassifier(steps=steps))
    print(f"SSLClassifier, features: accuracy {features.fit(flat, shown).score(test_flat, test_y):.3f}")

    baseline = SelfTrainingClassifier(LogisticRegression(max_iter=1000))
    print(f"SelfTrainingClassifier:  accuracy {baseline.fit(16 * flat, shown).score(16 * test_flat, test_y):.3f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
