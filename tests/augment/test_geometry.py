"""Crop and Cutout: against numpy's reflect padding and PIL's rectangle, and by their statistics."""

import numpy
import pytest
import torch
from PIL import Image, ImageDraw

from vcc_infuse.augment.geometry import GRAY_FILL, RGB_FILL, boxes, crop, cut, sample_boxes, sample_crops

CPU = torch.device("cpu")


@pytest.mark.parametrize(("height", "width"), [(32, 32), (8, 8), (20, 41), (5, 30)])
def test_crop_is_a_window_of_the_reflect_padded_image(height, width):
    torch.manual_seed(0)
    images = torch.randint(0, 256, (50, 3, height, width), dtype=torch.uint8)
    crops = sample_crops(50, height, width, CPU)
    margins = (int(0.125 * height), int(0.125 * width))
    for image, result, down, right, mirrored in zip(images, crop(images, crops), *crops, strict=True):
        padded = numpy.pad(image.numpy(), ((0, 0), (margins[0],) * 2, (margins[1],) * 2), mode="reflect")
        top, left = margins[0] + int(down), margins[1] + int(right)
        window = padded[:, top : top + height, left : left + width]
        assert window.shape == image.shape
        assert numpy.array_equal(result.numpy(), window[:, :, ::-1] if mirrored else window)


def test_crops_are_uniform_and_half_are_mirrored():
    torch.manual_seed(0)
    crops = sample_crops(18000, 32, 32, CPU)
    for offset in crops[:2]:
        assert offset.min() == -4
        assert offset.max() == 4
        assert torch.bincount(offset.long() + 4).sub(2000).abs().max() < 200
    assert abs(crops.mirrored.float().mean() - 0.5) < 0.02
    assert abs(torch.corrcoef(torch.stack([x.float() for x in crops])) - torch.eye(3)).max() < 0.04
    assert not sample_crops(100, 32, 32, CPU, flip=False).mirrored.any()


@pytest.mark.parametrize(("mode", "color"), [("RGB", RGB_FILL), ("L", GRAY_FILL)])
def test_cutout_equals_pils_rectangle(mode, color):
    torch.manual_seed(0)
    height, width, channels = 24, 32, len(mode) if mode == "RGB" else 1
    images = torch.randint(0, 256, (200, channels, height, width), dtype=torch.uint8)
    side, x, y = torch.rand(200) * 12, torch.rand(200) * width, torch.rand(200) * height
    ours = cut(images.clone(), boxes(side, x, y))
    for i, image in enumerate(images):
        picture = Image.fromarray(image.permute(1, 2, 0).squeeze(2).numpy().copy())
        left, top = (int(max(0, float(centre[i]) - float(side[i]) / 2)) for centre in (x, y))
        corner = (min(width, left + float(side[i])), min(height, top + float(side[i])))
        ImageDraw.Draw(picture).rectangle((left, top, *corner), color)
        expected = torch.from_numpy(numpy.array(picture)).view(height, width, channels).permute(2, 0, 1)
        assert torch.equal(ours[i], expected)


def test_gray_fill_is_the_luma_of_the_color():
    assert Image.new("RGB", (1, 1), RGB_FILL).convert("L").getpixel((0, 0)) == GRAY_FILL


def test_cutout_sizes_and_places():
    torch.manual_seed(0)
    hidden = cut(torch.zeros(20000, 1, 32, 32, dtype=torch.uint8), sample_boxes(20000, 32, 32, CPU))[:, 0] > 0
    across, down = hidden.any(1).sum(1), hidden.any(2).sum(1)
    assert torch.equal(across * down, hidden.sum((1, 2)))  # a full rectangle
    assert across.min() == 1
    assert across.max() == 16
    frequency = hidden.float().mean(0)[17:23, 17:23]  # far from the border, where squares are shifted or clipped
    expected = sum(side**2 for side in range(1, 17)) / 16 / 32**2
    assert (frequency - expected).abs().max() < 0.01


def test_cutout_keeps_its_size_at_the_left_and_is_clipped_at_the_right():
    first, last = boxes(torch.tensor([10.0, 10.0]), torch.tensor([1.0, 31.0]), torch.tensor([16.0, 16.0]))[::2]
    assert first.tolist() == [0, 26]
    assert last.tolist() == [10, 36]
    hidden = cut(torch.zeros(2, 3, 32, 32, dtype=torch.uint8), boxes(*torch.tensor([[10.0] * 2, [1, 31], [16] * 2])))
    assert hidden[:, 0].amax(1).count_nonzero(1).tolist() == [11, 6]
