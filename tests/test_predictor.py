"""A saved run can be loaded and gives the same predictions."""

import json

import pytest
import torch
from torch import nn

from vcc_infuse import VCC, FixMatch, Predictor, SmallConv, Trainer, UserError


class OwnNetwork(nn.Module):
    """A user's backbone: any module that returns features."""

    def __init__(self, width=6):
        super().__init__()
        self.width = width
        self.layers = nn.Sequential(nn.Flatten(), nn.LazyLinear(width), nn.Tanh())

    def forward(self, x):
        return self.layers(x)


def saved(model, folder, digits):
    trainer = Trainer(model, FixMatch(), VCC(), steps=2, batch_size=4, unlabeled_ratio=2, progress=False, device="cpu")
    trainer.fit(digits)
    predictor = trainer.predictor()
    predictor.save(folder)
    return predictor


@pytest.mark.parametrize(
    ("model", "path"), [(SmallConv(4), "vcc_infuse.SmallConv"), (OwnNetwork(), f"{__name__}.OwnNetwork")]
)
def test_a_loaded_run_predicts_the_same(model, path, tmp_path, digits):
    predictor, x = saved(model, tmp_path, digits), digits.dataset.test.x[:50]
    card = json.loads((tmp_path / "model.json").read_text())
    assert card["backbone"]["class_path"] == path
    assert card["calibrator"]["class_path"] == "vcc_infuse.VCC"
    before, after = predictor.predict(x), Predictor.load(tmp_path).predict(x)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_faulty_folders_are_one_line(tmp_path, digits):
    with pytest.raises(UserError, match="has no model.json; give the folder of a finished run"):
        Predictor.load(tmp_path)
    predictor = saved(SmallConv(4), tmp_path, digits)
    with pytest.raises(UserError, match=r"trained on examples of shape \(8, 8, 1\), got \(9, 9, 1\)"):
        predictor.predict(digits.dataset.test.x[:2].repeat(2, 1)[:, :9].repeat(2, 2)[:, :, :9])
    card = json.loads((tmp_path / "model.json").read_text())
    card["backbone"]["init_args"]["width"] = 5
    (tmp_path / "model.json").write_text(json.dumps(card))
    with pytest.raises(UserError, match="does not match this version's Classifier; train again"):
        Predictor.load(tmp_path)
    (tmp_path / "model.json").write_text("{")
    with pytest.raises(UserError, match="model.json is damaged"):
        Predictor.load(tmp_path)
    saved(SmallConv(4), tmp_path, digits)
    (tmp_path / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(UserError, match="model.safetensors cannot be read"):
        Predictor.load(tmp_path)
