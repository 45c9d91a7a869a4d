"""Operations, drawn changes and the whole strong view against PIL, on noise, photographs and digits."""

import numpy
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from sklearn.datasets import load_digits, load_sample_image

from vcc_infuse.augment.color import sharpness
from vcc_infuse.augment.geometry import crop, cut, fixed_point, sample, sample_boxes, sample_crops
from vcc_infuse.augment.randaugment import POOL, DrawnChanges, apply_changes, draw_changes
from vcc_infuse.augment.recipe import read_augment
from vcc_infuse.augment.views import ImageViews

CPU = torch.device("cpu")
NAMES = list(POOL)
EVERY = read_augment("natural").strong.changes


def affine(image, *matrix):
    return image.transform(image.size, Image.Transform.AFFINE, matrix)


PIL_POOL = {
    "identity": lambda image, v: image,
    "autocontrast": lambda image, v: ImageOps.autocontrast(image),
    "equalize": lambda image, v: ImageOps.equalize(image),
    "posterize": lambda image, v: ImageOps.posterize(image, int(v)),
    "solarize": lambda image, v: ImageOps.solarize(image, v),
    "brightness": lambda image, v: ImageEnhance.Brightness(image).enhance(v),
    "contrast": lambda image, v: ImageEnhance.Contrast(image).enhance(v),
    "color": lambda image, v: ImageEnhance.Color(image).enhance(v),
    "sharpness": lambda image, v: ImageEnhance.Sharpness(image).enhance(v),
    "rotate": lambda image, v: image.rotate(v),
    "shear_x": lambda image, v: affine(image, 1, v, 0, 0, 1, 0),
    "shear_y": lambda image, v: affine(image, 1, 0, 0, v, 1, 0),
    "translate_x": lambda image, v: affine(image, 1, 0, v * image.width, 0, 1, 0),
    "translate_y": lambda image, v: affine(image, 1, 0, 0, 0, 1, v * image.height),
}


def changed(name, images, magnitudes):
    operation = POOL[name]
    if operation.matrix is None:
        return operation.apply(images, magnitudes)
    return sample(images, fixed_point(operation.matrix(magnitudes, *images.shape[2:])))


def to_pil(image):
    array = image.permute(1, 2, 0).numpy()
    return Image.fromarray(array.squeeze(2) if array.shape[2] == 1 else numpy.ascontiguousarray(array))


def from_pil(image):
    array = torch.from_numpy(numpy.array(image))
    return array.unsqueeze(0) if array.dim() == 2 else array.permute(2, 0, 1)


def photographs(mode, width, height, count=24):
    """Different parts of two pictures, so that every image of the batch differs."""
    pictures = [Image.fromarray(load_sample_image(name)).convert(mode) for name in ("china.jpg", "flower.jpg")]
    boxes = [(20 * i, 10 * i, 20 * i + 150, 10 * i + 150) for i in range(count // 2)]
    parts = [picture.resize((width, height), box=box) for picture in pictures for box in boxes]
    return torch.stack([from_pil(part) for part in parts])


def digits(count=24):
    return torch.from_numpy((load_digits().images[:count] * 15.9).astype("uint8")).unsqueeze(1)


def noise(channels, height, width, count=24):
    random = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, channels, height, width), generator=random, dtype=torch.uint8)
    images[0], images[1], images[2] = 0, 255, 77  # flat images: nothing to stretch or to flatten
    images[3] = images[3] // 4 + 90
    return images


SETS = {
    "noise": lambda: noise(3, 32, 32),
    "wide noise": lambda: noise(3, 21, 50),
    "gray noise": lambda: noise(1, 33, 28),
    "photographs": lambda: photographs("RGB", 32, 32),
    "wide photographs": lambda: photographs("RGB", 96, 64),
    "gray photographs": lambda: photographs("L", 40, 56),
    "digits": digits,
}


@pytest.mark.parametrize("content", SETS)
@pytest.mark.parametrize("name", POOL)
def test_equals_pil_pixel_by_pixel(name, content):
    images, operation = SETS[content](), POOL[name]
    before = images.clone()
    magnitudes = torch.linspace(operation.low, operation.high, len(images)).clamp(max=8 if name == "posterize" else 256)
    ours = changed(name, images, magnitudes)
    theirs = torch.stack(
        [from_pil(PIL_POOL[name](to_pil(x), v)) for x, v in zip(images, magnitudes.tolist(), strict=True)]
    )
    assert ours.dtype == torch.uint8
    assert torch.equal(ours, theirs)
    assert torch.equal(images, before)


@pytest.mark.parametrize(
    "name", ["rotate", "shear_x", "shear_y", "translate_x", "translate_y", "brightness", "contrast"]
)
def test_equals_pil_at_many_random_magnitudes(name):
    images, operation = photographs("RGB", 32, 32).repeat(40, 1, 1, 1), POOL[name]
    u = torch.rand(len(images), generator=torch.Generator().manual_seed(1))
    magnitudes = operation.low + (operation.high - operation.low) * u
    ours = changed(name, images, magnitudes)
    theirs = torch.stack(
        [from_pil(PIL_POOL[name](to_pil(x), v)) for x, v in zip(images, magnitudes.tolist(), strict=True)]
    )
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", ["brightness", "contrast", "color", "sharpness"])
def test_factors_above_one_are_clipped_as_by_pil(name):
    images = photographs("RGB", 32, 32)
    magnitudes = torch.linspace(1, 4, len(images))
    expected = [from_pil(PIL_POOL[name](to_pil(x), v)) for x, v in zip(images, magnitudes.tolist(), strict=True)]
    assert torch.equal(changed(name, images, magnitudes), torch.stack(expected))


@pytest.mark.parametrize("name", ["rotate", "shear_x", "solarize", "contrast", "sharpness", "posterize"])
def test_no_magnitude_changes_nothing(name):
    images = noise(3, 16, 24)
    nothing = {"rotate": 0.0, "shear_x": 0.0, "solarize": 256.0, "contrast": 1.0, "sharpness": 1.0, "posterize": 8.0}
    assert torch.equal(changed(name, images, torch.full((len(images),), nothing[name])), images)


@pytest.mark.parametrize("shape", [(1, 1), (2, 5), (5, 2), (3, 3)])
def test_sharpness_of_tiny_images(shape):
    images = noise(3, *shape, count=6)
    theirs = [from_pil(PIL_POOL["sharpness"](to_pil(x), 0.3)) for x in images]
    assert torch.equal(sharpness(images, torch.full((6,), 0.3)), torch.stack(theirs))


def pil_changes(image, operations, magnitudes):
    picture = to_pil(image)
    for operation, magnitude in zip(operations.tolist(), magnitudes.tolist(), strict=True):
        picture = PIL_POOL[NAMES[operation]](picture, magnitude)
    return from_pil(picture)


def one_by_one(images, drawn):
    steps = zip(images, drawn.operations.T, drawn.magnitudes.T, strict=True)
    return torch.stack([pil_changes(*step) for step in steps])


@pytest.mark.parametrize(
    "images", [noise(3, 32, 32, 120), photographs("RGB", 48, 32, 20), digits(100), noise(1, 19, 30, 120)]
)
def test_drawn_changes_equal_pil_one_after_the_other(images):
    torch.manual_seed(3)
    drawn = draw_changes(len(images), 3, EVERY)
    assert torch.equal(apply_changes(images, drawn, EVERY), one_by_one(images, drawn))


@pytest.mark.parametrize("size", [1, 2])
def test_small_batches_and_absent_operations(size):
    torch.manual_seed(0)
    images = noise(3, 16, 16, 8)[-size:]
    for _ in range(40):
        drawn = draw_changes(size, 3, EVERY)
        assert torch.equal(apply_changes(images, drawn, EVERY), one_by_one(images, drawn))


def test_order_of_the_draws_counts():
    images = photographs("RGB", 32, 32, 2)
    solarize, rotate = NAMES.index("solarize"), NAMES.index("rotate")
    drawn = DrawnChanges(
        torch.tensor([[solarize, rotate], [rotate, solarize]]), torch.tensor([[0.0, 20.0], [20.0, 0.0]])
    )
    same = images[:1].repeat(2, 1, 1, 1)
    result = apply_changes(same, drawn, EVERY)
    assert not torch.equal(result[0], result[1])
    assert torch.equal(result, one_by_one(same, drawn))


def test_strong_is_crop_then_changes_then_cutout():
    images = photographs("RGB", 40, 32, 24)
    views = ImageViews((0.4, 0.5, 0.6), (0.2, 0.25, 0.3))
    torch.manual_seed(5)
    strong = views.strong(images.permute(0, 2, 3, 1).contiguous())
    torch.manual_seed(5)
    moved = crop(images, sample_crops(24, 32, 40, CPU))
    expected = cut(one_by_one(moved, draw_changes(24, 3, EVERY)), sample_boxes(24, 32, 40, CPU))
    mean, std = torch.tensor([0.4, 0.5, 0.6]).view(3, 1, 1), torch.tensor([0.2, 0.25, 0.3]).view(3, 1, 1)
    torch.testing.assert_close(strong, (expected / 255 - mean) / std, atol=1e-5, rtol=1e-5)
