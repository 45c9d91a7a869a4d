"""Mean and standard deviation per channel or feature, in double precision and bounded memory."""

import numpy as np

CHUNK = 1024

Moments = tuple[tuple[float, ...], tuple[float, ...]]


def moments(x: np.ndarray) -> Moments:
    """Per channel in units of [0, 1] for uint8 images, per feature for vectors; std is never 0."""
    mean, std = _of_images(x) if x.ndim == 4 else _of_vectors(x)
    std = np.where(std > 0, std, 1.0)  # a constant column is only shifted
    return tuple(mean.tolist()), tuple(std.tolist())


def _of_images(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """From the histogram of the 256 values, which is exact whatever the number of pixels."""
    counts = np.zeros((x.shape[-1], 256))
    for start in range(0, len(x), CHUNK):
        for c in range(x.shape[-1]):
            counts[c] += np.bincount(x[start : start + CHUNK, ..., c].ravel(), minlength=256)
    share, value = counts / counts.sum(1, keepdims=True), np.arange(256) / 255
    mean = share @ value
    return mean, np.sqrt((share * (value - mean[:, None]) ** 2).sum(1))


def _of_vectors(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Two passes, because E[x²] − E[x]² loses all digits when the mean is large."""
    starts = range(0, len(x), CHUNK)
    mean = sum(x[i : i + CHUNK].sum(0, dtype=np.float64) for i in starts) / len(x)
    square = sum(((x[i : i + CHUNK].astype(np.float64) - mean) ** 2).sum(0) for i in starts) / len(x)
    return np.asarray(mean), np.sqrt(square)
