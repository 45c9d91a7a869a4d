"""The public views: shapes, memory format, randomness, names, and what they refuse."""

import pytest
import torch

from vcc_infuse.augment.views import BankViews, ImageViews, SlotRows, VectorViews
from vcc_infuse.errors import UserError

VIEWS = ImageViews((0.4, 0.5, 0.6), (0.2, 0.25, 0.3))


def raw_images(batch=16, height=32, width=32, channels=3):
    random = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (batch, height, width, channels), generator=random, dtype=torch.uint8)


def test_plain_is_the_usual_normalization():
    raw = raw_images()
    expected = (raw.double() / 255 - torch.tensor([0.4, 0.5, 0.6])) / torch.tensor([0.2, 0.25, 0.3])
    torch.testing.assert_close(VIEWS.plain(raw), expected.permute(0, 3, 1, 2).float(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["plain", "weak", "strong", "weak_2", "strong_2"])
@pytest.mark.parametrize("shape", [(5, 32, 32, 3), (4, 8, 8, 1), (3, 20, 33, 3), (2, 1, 1, 3), (0, 9, 9, 3)])
def test_shape_type_and_memory_format(name, shape):
    raw = raw_images(*shape)
    before = raw.clone()
    view = ImageViews((0.5,) * shape[3], (0.25,) * shape[3])(name, raw)
    assert view.shape == (shape[0], shape[3], shape[1], shape[2])
    assert view.dtype == torch.float32
    assert view.is_contiguous(memory_format=torch.channels_last)
    assert view.isfinite().all()
    assert torch.equal(raw, before)


@pytest.mark.parametrize("name", ["weak", "strong"])
def test_seed_decides_and_every_call_is_a_fresh_draw(name):
    raw = raw_images()
    torch.manual_seed(1)
    first, second = VIEWS(name, raw), VIEWS(name + "_2", raw)
    torch.manual_seed(1)
    again = VIEWS(name, raw)
    assert torch.equal(first, again)
    assert not torch.equal(first, second)


def test_plain_draws_nothing():
    state = torch.get_rng_state()
    VIEWS.plain(raw_images())
    assert torch.equal(state, torch.get_rng_state())


def test_every_image_has_its_own_draw():
    raw = raw_images(1).expand(64, -1, -1, -1)
    torch.manual_seed(0)
    assert len(VIEWS.strong(raw).flatten(1).unique(dim=0)) == 64
    assert len(VIEWS.weak(raw).flatten(1).unique(dim=0)) > 40  # of 162 crops


@pytest.mark.parametrize("shape", [(16, 32, 32, 3), (16, 8, 8, 1), (16, 20, 33, 3)])
def test_rows_made_later_are_those_of_the_whole_view(shape):
    raw, views = raw_images(*shape), ImageViews((0.5,) * shape[3], (0.25,) * shape[3])
    torch.manual_seed(1)
    whole, after = views.strong(raw), torch.rand(1)
    torch.manual_seed(1)
    later = views.strong_later(raw)
    assert torch.equal(torch.rand(1), after), "all random numbers are drawn at once"
    for rows in (torch.tensor([3, 15, 4]), torch.arange(16), slice(5), torch.tensor([], dtype=torch.long)):
        assert torch.equal(later(rows), whole[rows])


@pytest.mark.parametrize("slots", [(2, 3), (2, 0), (0, 0)])
def test_slots_of_a_bank_are_read_where_they_are(slots):
    """From memory or from the file, at once or later: the same draw."""
    x = torch.randn(20, 1 + sum(slots), 4).half().numpy()
    views, rows = BankViews((0.0,) * 4, (1.0,) * 4, slots), torch.randperm(20)[:9]
    sources = [torch.from_numpy(x[rows.numpy()]), SlotRows(x, rows.numpy(), torch.device("cpu"))]
    assert torch.equal(*(views.plain(source) for source in sources))
    for name in ("weak", "strong"):
        seen = []
        for source in sources:
            torch.manual_seed(2)
            seen.append(views(name, source))
        assert torch.equal(*seen)
    some = torch.tensor([8, 0])
    torch.manual_seed(2)
    assert torch.equal(views.strong_later(sources[1])(some), seen[0][some])
    near = torch.nn.functional.normalize(torch.from_numpy(x[rows.numpy()]).float(), dim=-1)
    first = 1 + slots[0] if slots[1] else 1 if slots[0] else 0
    last = first + (slots[1] or slots[0] or 1)
    gap = (near[:, first:last] - seen[0][:, None]).norm(dim=-1).amin(1)
    assert gap.max() < 1e-5


def test_flip_can_be_turned_off():
    torch.manual_seed(0)
    ramp = torch.arange(32, dtype=torch.uint8).view(1, 1, 32, 1).expand(200, 32, 32, 1)
    free, upright = (ImageViews((0.0,), (1.0,), flip=flip).weak(ramp) for flip in (True, False))
    assert (upright[..., 20] > upright[..., 12]).all()
    assert 0.35 < (free[..., 20] > free[..., 12]).float().mean() < 0.65


def test_threads_are_left_as_they_were():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    with pytest.raises(UserError):
        VIEWS.strong(raw_images().float())
    VIEWS.strong(raw_images())
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)


@pytest.mark.parametrize("raw", [torch.zeros(2, 8, 8, 3), torch.zeros(2, 3, 8, 8, dtype=torch.uint8)])
def test_wrong_images_are_refused(raw):
    with pytest.raises(UserError, match="give uint8"):
        VIEWS.weak(raw)


def test_unknown_view_is_refused():
    with pytest.raises(UserError, match="'medium' is unknown"):
        VIEWS("medium", raw_images(1))


def vectors():
    torch.manual_seed(0)
    raw = torch.randn(4000, 6) * torch.tensor([1.0, 2, 3, 4, 5, 0]) + 7
    views = VectorViews(raw.mean(0), raw.std(0))
    views.weak_noise = 0.1
    views.strong_noise = 0.3
    views.dropout = 0.25
    return raw, views


def test_vectors_plain_is_standardized_even_where_constant():
    raw, views = vectors()
    plain = views.plain(raw)
    assert plain.isfinite().all()
    torch.testing.assert_close(plain[:, :5].std(0), torch.ones(5), atol=1e-3, rtol=0)
    torch.testing.assert_close(plain[:, 5], torch.zeros(4000), atol=1e-5, rtol=0)


def test_vectors_weak_and_strong_have_the_noise_and_the_gaps_asked_for():
    raw, views = vectors()
    plain, weak, strong = (views(name, raw) for name in ("plain", "weak", "strong_2"))
    missing = strong == 0
    assert abs((weak - plain).std() - 0.1) < 0.005
    assert abs(missing.float().mean() - 0.25) < 0.02
    assert abs((strong - plain)[~missing].std() - 0.3) < 0.01
    assert missing.float().mean(1).std() > 0.1  # each row loses its own features
