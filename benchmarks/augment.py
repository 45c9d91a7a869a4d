"""Speed of strong views of a batch: ours against the same recipe in PIL, image by image, timed alternately."""

import random
import statistics
import time

import numpy
import torch
from PIL import Image, ImageDraw, ImageEnhance, ImageOps

from vcc_infuse.data.augment.views import ImageViews

MEAN, STD = (0.491, 0.482, 0.447), (0.247, 0.244, 0.262)


def affine(image, *matrix):
    return image.transform(image.size, Image.Transform.AFFINE, matrix)


PIL_POOL = (
    (lambda image, v: image, 0, 1),
    (lambda image, v: ImageOps.autocontrast(image), 0, 1),
    (lambda image, v: ImageOps.equalize(image), 0, 1),
    (lambda image, v: ImageOps.posterize(image, int(v)), 4, 8),
    (lambda image, v: ImageOps.solarize(image, v), 0, 256),
    (lambda image, v: ImageEnhance.Brightness(image).enhance(v), 0.05, 0.95),
    (lambda image, v: ImageEnhance.Contrast(image).enhance(v), 0.05, 0.95),
    (lambda image, v: ImageEnhance.Color(image).enhance(v), 0.05, 0.95),
    (lambda image, v: ImageEnhance.Sharpness(image).enhance(v), 0.05, 0.95),
    (lambda image, v: image.rotate(v), -30, 30),
    (lambda image, v: affine(image, 1, v, 0, 0, 1, 0), -0.3, 0.3),
    (lambda image, v: affine(image, 1, 0, 0, v, 1, 0), -0.3, 0.3),
    (lambda image, v: affine(image, 1, 0, v * image.width, 0, 1, 0), -0.3, 0.3),
    (lambda image, v: affine(image, 1, 0, 0, 0, 1, v * image.height), -0.3, 0.3),
)


def pil_cutout(image):
    width, height = image.size
    side = random.uniform(0, 0.5) * width
    x, y = (int(max(0, random.uniform(0, end) - side / 2)) for end in (width, height))
    box = (x, y, min(width, x + side), min(height, y + side))
    ImageDraw.Draw(image).rectangle(box, (125, 123, 114))
    return image


def pil_strong(array, reflected, scale, shift):
    """One image: reflected crop by indexing in numpy (faster than padding), operations in PIL, then a tensor."""
    size, margin = len(array), len(array) // 8
    top, left = random.randint(0, 2 * margin), random.randint(0, 2 * margin)
    rows, columns = reflected[top : top + size], reflected[left : left + size]
    array = array[rows[:, None], columns if random.random() < 0.5 else columns[::-1]]
    image = Image.fromarray(array)
    for operation, low, high in random.choices(PIL_POOL, k=3):
        image = operation(image, random.uniform(low, high))
    values = numpy.asarray(pil_cutout(image.copy()), dtype=numpy.float32)
    return torch.from_numpy((values * scale + shift).transpose(2, 0, 1))


def pil_batch(arrays):
    scale = (1 / (255 * numpy.array(STD))).astype(numpy.float32)
    shift = (-numpy.array(MEAN) / numpy.array(STD)).astype(numpy.float32)
    size = arrays.shape[1]
    reflected = numpy.pad(numpy.arange(size), size // 8, mode="reflect")
    return torch.stack([pil_strong(array, reflected, scale, shift) for array in arrays])


def milliseconds(work):
    start = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - start)


def compare(images: int = 448, size: int = 32, rounds: int = 10, threads: int | None = None) -> dict:
    """Medians over alternating rounds: ms per image of both, and the ratio of PIL to ours."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    raw = torch.randint(0, 256, (images, size, size, 3), dtype=torch.uint8)
    arrays, views = raw.numpy(), ImageViews(MEAN, STD)
    works = {"ours": lambda: views.strong(raw), "pil": lambda: pil_batch(arrays)}
    pairs = [{name: milliseconds(work) for name, work in works.items()} for _ in range(rounds + 2)][2:]
    used = torch.get_num_threads()
    torch.set_num_threads(before)
    result = {name: statistics.median(pair[name] for pair in pairs) / images for name in works}
    ratio = statistics.median(pair["pil"] / pair["ours"] for pair in pairs)
    return {"images": images, "size": size, "threads": used, **result, "ratio": ratio}


if __name__ == "__main__":
    print("images  size  threads  ours ms/image  PIL ms/image  ratio")
    for threads in dict.fromkeys((torch.get_num_threads(), 1)):
        for size in (32, 96):
            row = compare(size=size, threads=threads)
            print("{images:6} {size:5} {threads:8} {ours:14.4f} {pil:13.4f} {ratio:6.1f}".format(**row))
