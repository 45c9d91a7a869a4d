"""Augmentation by name: each preset does what it says and nothing else, natural is what it was, mistakes cost one."""

import hashlib
import re

import numpy as np
import pytest
import torch
import yaml

from vcc_infuse import MLP, SSLClassifier, SSLData, Supervised, Trainer, load_ssl
from vcc_infuse.augment.randaugment import POOL
from vcc_infuse.augment.recipe import PRESETS, Change, Recipe, read_augment
from vcc_infuse.augment.views import ImageViews
from vcc_infuse.bank.bank import Bank, BankConfig
from vcc_infuse.cli.main import main
from vcc_infuse.errors import OptionError
from vcc_infuse.inference.predictor import Predictor

COLORS, INVERTS = {"color"}, {"solarize", "posterize", "equalize"}
WARPS = {"rotate", "shear_x", "shear_y", "translate_x", "translate_y"}


def raw_images(batch, height, width, channels):
    random = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (batch, height, width, channels), generator=random, dtype=torch.uint8)


def levels(augment, channels=3, **options):
    """Views whose normalized values are those of the pixels, 0…255."""
    return ImageViews((0.0,) * channels, (1 / 255,) * channels, augment=augment, **options)


@pytest.mark.parametrize(
    ("shape", "flip", "digest", "after"),
    [
        ((64, 32, 32, 3), True, "9e637e89f8929f8b", 0.3718608021736145),
        ((64, 32, 32, 3), False, "8e4e70aa1ec36b18", 0.8637580871582031),
        ((48, 8, 8, 1), True, "a3dd6aad7e1fc8cd", 0.42286980152130127),
        ((48, 8, 8, 1), False, "3ae3890ccd60b7d1", 0.6218833923339844),
        ((33, 20, 33, 3), True, "29e206a51b339673", 0.3381868004798889),
    ],
)
def test_natural_is_what_it_was_before_it_had_a_name(shape, flip, digest, after):
    views, found = levels("natural", shape[3], flip=flip), hashlib.sha256()
    torch.manual_seed(7)
    for name in ("weak", "strong", "weak_2", "strong_2"):
        found.update(views(name, raw_images(*shape)).round().to(torch.uint8).contiguous().numpy().tobytes())
    assert found.hexdigest().startswith(digest)
    assert float(torch.rand(1)) == after


def symmetries(image):
    """The eight images that turns and mirrors make of one, by name."""
    turned = {(k, False): np.rot90(image, k) for k in range(4)}
    return turned | {(k, True): np.rot90(image[:, ::-1], k) for k in range(4)}


def seen(augment, height=6, width=6, batch=400, **options):
    """Which of the eight symmetries the weak views without crops show; None for anything else."""
    image = np.random.default_rng(0).integers(0, 256, (height, width, 1), dtype=np.uint8)
    raw = torch.from_numpy(image).expand(batch, -1, -1, -1)
    torch.manual_seed(0)
    made = levels(augment, 1, **options).weak(raw).round().to(torch.uint8)[:, 0].numpy()
    known = {each.tobytes(): name for name, each in symmetries(image[..., 0]).items()}
    return [known.get(np.ascontiguousarray(each).tobytes()) for each in made]


def test_microscopy_and_satellite_show_all_eight_symmetries_equally_often():
    for augment in ("microscopy", "satellite"):
        found = seen(augment)  # a crop of six pixels moves by none
        counts = [found.count((k, mirrored)) for k in range(4) for mirrored in (False, True)]
        assert sum(counts) == 400
        assert min(counts) > 20  # 50 are expected, and the deviation is 6.6


def test_flip_false_leaves_the_turns():
    assert set(seen("microscopy", flip=False)) == {(k, False) for k in range(4)}


def test_an_image_that_is_not_square_is_turned_upside_down_only():
    assert set(seen("microscopy", height=6, width=5)) == {(0, False), (2, False), (0, True), (2, True)}


def test_mirrors_of_the_other_presets():
    assert set(seen("natural")) == set(seen("gentle")) == {(0, False), (0, True)}
    assert set(seen("text")) == set(seen("none")) == {(0, False)}


def test_a_turned_view_made_later_is_that_of_the_whole():
    raw, views = raw_images(16, 12, 12, 3), levels("microscopy")
    torch.manual_seed(1)
    whole = views.strong(raw)
    torch.manual_seed(1)
    later, rows = views.strong_later(raw), torch.tensor([3, 15, 4])
    assert torch.equal(later(rows), whole[rows])


def changes(augment):
    return {each.name: each for each in read_augment(augment).strong.changes}


def test_which_operations_each_preset_has():
    assert set(changes("natural")) == set(POOL)
    assert all(changes("natural")[name][1:] == (each.low, each.high) for name, each in POOL.items())
    assert not set(changes("microscopy")) & (COLORS | INVERTS | WARPS)
    assert {"brightness", "contrast", "color"} <= set(changes("satellite"))
    assert not set(changes("satellite")) & (INVERTS | WARPS)
    assert not set(changes("text")) & (COLORS | INVERTS)
    assert not set(changes("gentle")) & INVERTS
    assert changes("none") == {}


def test_how_strong_they_are():
    for name in ("brightness", "contrast", "color"):
        assert changes("gentle")[name][1:] == (0.8, 1.2)
    assert changes("microscopy")["brightness"][1:] == (0.8, 1.2)
    assert changes("text")["rotate"][1:] == (-8, 8)
    assert [read_augment(each).strong.cutout for each in PRESETS] == [0.5, 0, 0.25, 0.5, 0.2, 0]


def test_weak_views_change_no_value():
    for preset in PRESETS:
        assert read_augment(preset).weak[3:] == Recipe()[3:]


def test_gentle_views_stay_near_the_image():
    flat = torch.full((500, 16, 16, 3), 120, dtype=torch.uint8)
    torch.manual_seed(0)
    inner = levels("gentle").strong(flat)[:, :, 6:10, 6:10]
    assert inner.min() > 120 * 0.8**2 - 3
    assert inner.max() < 120 * 1.2**2 + 1
    assert levels("natural").strong(flat)[:, :, 6:10, 6:10].min() < 20


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("shape", [(5, 32, 32, 3), (4, 8, 8, 1), (3, 20, 33, 5), (2, 1, 1, 3), (0, 9, 9, 3)])
def test_every_preset_takes_every_shape(preset, shape):
    for name in ("weak", "strong"):
        view = levels(preset, shape[3])(name, raw_images(*shape))
        assert view.shape == (shape[0], shape[3], shape[1], shape[2])
        assert (view >= -1e-3).all()
        assert (view <= 255.001).all()


def test_none_is_the_plain_view():
    raw, views = raw_images(8, 16, 16, 3), levels("none")
    for name in ("weak", "strong"):
        assert torch.equal(views(name, raw), views.plain(raw))


def test_operations_with_magnitudes():
    strong = {"rotate": 15, "flip": True, "brightness": [0.7, 1.3], "solarize": 128, "draws": 1}
    found = read_augment({"weak": {"crop": 0.25, "turns": True}, "strong": strong})
    assert found.weak == Recipe(crop=0.25, turns=True)
    assert found.strong.flip
    assert found.strong.draws == 1
    # Warps come last, because they share a call.
    expected = (Change("brightness", 0.7, 1.3), Change("solarize", 128, 256), Change("rotate", -15, 15))
    assert found.strong.changes == expected


def test_yaml_is_read_as_the_mapping():
    text = "{weak: none, strong: {crop: 0.1, flip: true, rotate: [-5, 10]}}"
    mapping = {"weak": "none", "strong": {"crop": 0.1, "flip": True, "rotate": (-5, 10)}}
    assert read_augment(text) == read_augment(mapping)


def test_magnitudes_in_short():
    strong = {"contrast": 0.4, "posterize": [5, 7], "shear_x": 0.1, "color": 2, "translate_y": [-0.1, 0.2],
              "equalize": True}  # fmt: skip
    found = {each.name: each[1:] for each in read_augment({"strong": strong}).strong.changes}
    assert found == {"contrast": (0.6, 1.4), "posterize": (5, 8), "shear_x": (-0.1, 0.1), "color": (0, 3),
                     "translate_y": (-0.1, 0.2), "equalize": (0, 0)}  # fmt: skip


def test_a_view_may_be_that_of_a_preset():
    mixed = read_augment({"weak": "microscopy", "strong": "natural"})
    assert mixed == (read_augment("microscopy").weak, read_augment("natural").strong)
    assert read_augment({"strong": "none"}).weak == read_augment("natural").weak


def test_only_the_given_operations_are_applied():
    raw = torch.full((200, 8, 8, 3), 100, dtype=torch.uint8)
    torch.manual_seed(0)
    made = levels({"strong": {"brightness": [0.5, 0.5]}}).strong(raw)
    assert torch.allclose(made, torch.full_like(made, 12.0))  # halved three times, by the three draws
    once = levels({"strong": {"brightness": [0.5, 0.5], "draws": 1}}).strong(raw)
    assert torch.allclose(once, torch.full_like(made, 50.0))


MISTAKES = [
    ("microscpy", "did you mean microscopy?"),
    ("rotate", "must be one of natural, gentle, microscopy, satellite, text, none, or a mapping"),
    ("{weak: gentl}", "did you mean gentle"),
    ("{weak: [crop]}", "for example {weak: gentle, strong: {crop: 0.1, rotate: 15}}"),
    ("{weak: {crop: true}, medium: {flip: true}}", "'medium' is neither"),
    ("{strong: {rotat: 15}}", "'rotat' is unknown; did you mean rotate"),
    ("{strong: {rotate: x}}", "takes rotate with a number from -180 to 180"),
    ("{strong: {rotate: 200}}", "takes rotate with a number from -180 to 180"),
    ("{strong: {rotate: [5, 1]}}", "[5, 1] is neither"),
    ("{strong: {rotate: [1, 2, 3]}}", "[1, 2, 3] is neither"),
    ("{strong: {brightness: .nan}}", "nan is neither"),
    ("{strong: {crop: 0.8}}", "takes crop with a number from 0 to 0.5"),
    ("{strong: {flip: 3}}", "takes flip without a number; write true instead of 3"),
    ("{strong: {equalize: 3}}", "takes equalize without a number; write true instead of 3"),
    ("{strong: {draws: 0}}", "takes draws from 1 to 10; 0 is none"),
]


@pytest.mark.parametrize(("text", "message"), MISTAKES)
def test_mistakes_cost_one_line(text, message, tmp_path, capsys):
    with pytest.raises(OptionError):
        load_ssl("digits", labels=40, augment=text)
    words = ["train", "--data", "digits", "--labels", "40", f"--augment={text}", "--out", str(tmp_path / "run")]
    assert main([*words, "--progress", "false"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("vcc-infuse: --augment ")
    assert message in re.sub(", got .*?; ", "; ", error)
    assert error.count("\n") == 1


def test_a_wrong_type_is_one_line_too():
    with pytest.raises(OptionError, match="must be one of natural"):
        SSLData.from_arrays(np.zeros((4, 8, 8), np.uint8), [0, 1, -1, -1], augment=["flip"])
    with pytest.raises(OptionError, match="needs images"):
        SSLData.from_arrays(np.random.rand(4, 3), [0, 1, -1, -1], augment="text")


class Flat(torch.nn.Module):
    def forward(self, x):
        return x.flatten(1)


def bank_of(augment, folder):
    data = load_ssl("digits", labels=40, augment=augment)
    mean, std = data.dataset.mean, data.dataset.std
    views = ImageViews(mean, std, data.dataset.flip, data.dataset.augment)
    return Bank(data.dataset, Flat(), views, BankConfig(1, 1), cache=str(folder))


def test_another_augmentation_is_another_bank(tmp_path):
    folders = [bank_of(each, tmp_path).folder for each in ("natural", "text", {"weak": "none"}, "gentle")]
    assert len(set(folders)) == 4
    same = {"weak": "natural", "strong": "natural"}
    assert bank_of(same, tmp_path).folder == folders[0], "the same, written otherwise"


def test_a_run_keeps_its_augmentation(tmp_path):
    """In config.yaml, which repeats and resumes it, and in model.json, by which `select` makes strong views."""
    words = "train --data digits --labels 40 --preset scratch --algorithm Supervised --steps 1 --batch_size 8"
    given = {"weak": "gentle", "strong": {"crop": 0.1, "rotate": 15}}
    options = ["--augment", "{weak: gentle, strong: {crop: 0.1, rotate: 15}}", "--out", str(tmp_path / "run")]
    assert main([*words.split(), *options]) == 0
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["augment"] == given
    assert Predictor.load(tmp_path / "run").views.recipes == read_augment(given)
    again = ["train", "--config", f"{tmp_path}/run/config.yaml", "--out", str(tmp_path / "again")]
    assert main(again) == 0
    assert (tmp_path / "again" / "config.yaml").read_text() == (tmp_path / "run" / "config.yaml").read_text()


def test_from_python_too(tmp_path):
    data = load_ssl("digits", labels=40, augment="none")
    trainer = Trainer(MLP((4,)), Supervised(), steps=1, batch_size=8, out=str(tmp_path / "run"), progress=False)
    trainer.fit(data)
    assert trainer.state_.views.recipes == read_augment("none")
    assert "augment: none" in (tmp_path / "run" / "config.yaml").read_text()
    images, y = np.random.default_rng(0).integers(0, 256, (8, 8, 8), np.uint8), [0, 1, 0, 1, -1, -1, -1, -1]
    model = SSLClassifier(MLP((4,)), Supervised(), steps=1, batch_size=4, augment="microscopy").fit(images, y)
    assert model.predictor_.views.recipes == read_augment("microscopy")
    assert SSLData.from_dataset(list(images), y, augment="text", size=8).dataset.augment == "text"
