"""Objects as plain data and back."""

import json

import pytest
import torch
import yaml
from torch import nn

import vcc_infuse
from vcc_infuse import DARP, MLP, Calibrator, FixMatch, FlexMatch, Trainer, UserError
from vcc_infuse.algorithms import Algorithm
from vcc_infuse.cli.main import main
from vcc_infuse.utils.serialization import from_config, load_state, to_config


class OwnNetwork(nn.Module):
    """A user's class, which is not part of the package."""

    def __init__(self, width=3):
        super().__init__()
        self.width = width
        self.layer = nn.Linear(4, width)

    def forward(self, x):
        return self.layer(x)


class SmallConv(OwnNetwork):
    """Shares its name with a public class."""


def stored(thing):
    """The description after a round trip through JSON."""
    return json.loads(json.dumps(to_config(thing)))


@pytest.mark.parametrize("name", ["FixMatch", "VCC", "INFUSE", "WideResNet", "Timm", "Softmax", "ABC"])
def test_public_classes_are_stored_by_their_public_path(name):
    kind = getattr(vcc_infuse, name)
    config = stored(kind())
    assert config["class_path"] == f"vcc_infuse.{name}"
    assert type(from_config(config, object)) is kind


def test_arguments_survive_the_round_trip():
    copy = from_config(stored(MLP(hidden=(5, 7), dropout=0.25)), nn.Module)
    assert (copy.hidden, copy.dropout) == ((5, 7), 0.25)


def test_a_plugin_stores_its_base_by_the_public_path_too():
    config = stored(DARP(base=FlexMatch(threshold=0.8)))
    assert config["class_path"] == "vcc_infuse.DARP"
    assert config["init_args"]["base"]["class_path"] == "vcc_infuse.FlexMatch"
    copy = from_config(config, Algorithm)
    assert type(copy.base) is FlexMatch
    assert copy.base.threshold == 0.8


@pytest.mark.parametrize("kind", [OwnNetwork, SmallConv])
def test_a_users_class_is_stored_by_its_own_path(kind):
    config = stored(kind(width=5))
    assert config["class_path"] == f"{kind.__module__}.{kind.__name__}"
    with pytest.raises(UserError, match="is code outside vcc_infuse, and is not run; if you trust it"):
        from_config(config, nn.Module)
    with pytest.raises(UserError, match="is code outside"):
        from_config(config, nn.Module, trust_code=["another.Class"])
    assert type(from_config(config, nn.Module, trust_code=[config["class_path"]])) is kind
    copy = from_config(config, nn.Module, trust_code=True)
    assert type(copy) is kind
    assert copy.width == 5


def test_classes_that_cannot_be_made_are_refused():
    with pytest.raises(
        UserError, match=r"no\.such\.Thing cannot be imported: .*; install its package, or give its file"
    ):
        from_config({"class_path": "no.such.Thing", "init_args": {}}, nn.Module, trust_code=True)
    with pytest.raises(UserError, match="vcc_infuse.NoSuchName cannot be imported"):
        from_config({"class_path": "vcc_infuse.NoSuchName", "init_args": {}}, nn.Module)
    with pytest.raises(UserError, match=r"vcc_infuse\.FixMatch is not a Calibrator"):
        from_config(to_config(FixMatch()), Calibrator)


def test_the_command_line_repeats_a_run_from_python(tmp_path, digits):
    run = tmp_path / "run"
    options = dict(steps=1, batch_size=4, unlabeled_ratio=1, out=str(run), progress=False, report=False)
    Trainer(MLP((8,)), DARP(base=FlexMatch(threshold=0.8)), **options).fit(digits)
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["model"]["class_path"] == "vcc_infuse.MLP"
    again = tmp_path / "again"
    assert main(["train", "--config", str(run / "config.yaml"), "--labels", "40", "--out", str(again)]) == 0
    assert (again / "model.safetensors").read_bytes() == (run / "model.safetensors").read_bytes()


def test_load_state_replaces_only_messages_about_tensors():
    layer = nn.Linear(2, 3)
    load_state(layer, {"weight": torch.ones(3, 2), "bias": torch.zeros(3)}, "does not fit")
    assert (layer.weight == 1).all()
    with pytest.raises(UserError, match="^does not fit$"):
        load_state(layer, {"weight": torch.ones(2, 2), "bias": torch.zeros(3)}, "does not fit")
    with pytest.raises(UserError, match="^does not fit$"):
        load_state(layer, {"weight": torch.ones(3, 2)}, "does not fit")

    class Faulty:
        def load_state_dict(self, state):
            raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        load_state(Faulty(), {}, "does not fit")
