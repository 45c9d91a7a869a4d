"""Fine-tuning whole runs of tiny timm networks with random weights."""

import copy
import math
import os
import signal

import pytest
import torch
import torch.distributed as dist
from tests.helpers.every import ALGORITHMS, lively, name
from tests.helpers.images import striped
from tests.helpers.processes import together

from vcc_infuse import VCC, FixMatch, Predictor, RandomOnline, SmallConv, Supervised, Timm, Trainer
from vcc_infuse.algorithms import PseudoLabeling
from vcc_infuse.algorithms.baselines import ClosedForm
from vcc_infuse.models.classifier import batchnorms
from vcc_infuse.training.interrupt import Interrupted
from vcc_infuse.training.optimizer import learning_rate
from vcc_infuse.training.presets import FINETUNE
from vcc_infuse.types import Step

RUN = dict(
    steps=4, eval_every=4, batch_size=4, unlabeled_ratio=2, device="cpu", precision="fp32", progress=False, report=False
)
RECIPE = dict(
    optimizer="adamw", lr=1e-3, head_lr=3e-3, layer_decay=0.75, warmup_steps=2, clip_grad=1.0, freeze_bn=True,
    head_init="probe", micro_batch=5,
)  # fmt: skip


@pytest.fixture(scope="module")
def data():
    return striped()


def resnet(**kwargs):
    return Timm("test_resnet", weights="none", model_kwargs=kwargs or None)


def vit(**kwargs):
    return Timm("test_vit", weights="none", model_kwargs={"depth": 2, **kwargs})


def prepared(data, model, method=None, calibrator=None, selector=None, **options):
    trainer = Trainer(model, method or lively(FixMatch), calibrator, selector, **{**RUN, **options})
    trainer.prepare(data)
    return trainer


def statistics(model):
    return [b.clone() for layer in batchnorms(model) for b in (layer.running_mean, layer.running_var)]


def weights(model):
    return {key: p.detach().clone() for key, p in model.named_parameters()}


def moved(before, model):
    return {key for key, p in model.named_parameters() if not torch.equal(before[key], p)}


def uneven(model):
    """Running statistics that no data would give, as if they were pretrained."""
    for layer in batchnorms(model):
        layer.running_mean.uniform_(-0.3, 0.3)
        layer.running_var.uniform_(0.5, 1.5)


def of_preset(**options):
    """The preset's own options, for a short run."""
    return {**{key: value for key, value in FINETUNE.items() if key != "model"}, **RUN, **options}


def test_the_preset_moves_the_head_ten_times_as_fast_as_all_layers_below(data):
    """The first step of AdamW without decay moves every weight by its learning rate."""
    trainer = prepared(data, vit(), **of_preset(weight_decay=0.0, warmup_steps=0, clip_grad=None))
    before = weights(trainer.state_.model)
    trainer.train_step(0)
    step = {key: (p - before[key]).abs().max().item() for key, p in trainer.state_.model.named_parameters()}
    assert step["head.weight"] == pytest.approx(3e-3, rel=1e-2)
    blocks = [step[f"backbone.net.blocks.{number}.attn.qkv.weight"] for number in (0, 1)]
    assert blocks == pytest.approx([3e-4, 3e-4], rel=1e-2)


def compared(data, folder, **options):
    trainer = Trainer(resnet(), lively(FixMatch), **of_preset(cross_fit=True, out=str(folder / "run"), **options))
    return trainer, trainer.fit(data)


def test_a_ruined_run_hands_out_its_probe(tmp_path):
    """An absurd rate: what is measured, saved and returned is the probe on the starting weights."""
    data = striped(rows=96, labeled=60)
    trainer, summary = compared(data, tmp_path, lr=0.03, head_lr=0.3, warmup_steps=0)
    assert summary["error_method"] > summary["error_probe"]
    assert (summary["handed_out"], summary["error"]) == ("probe", summary["error_probe"])
    assert summary["cross_validated"]["probe"]["error"] < summary["cross_validated"]["method"]["error"]
    assert (summary["cross_validated"]["labels"], summary["cross_validated"]["folds"]) == (21, 1)
    saved = Predictor.load(tmp_path / "run", "cpu").model.state_dict()
    start = prepared(data, resnet(), head_init="probe").state_.model.state_dict()
    assert all(torch.equal(saved[key], start[key]) for key in start)
    assert not torch.equal(saved["head.weight"], trainer.state_.ema.module.head.weight)


def test_a_run_that_is_not_behind_its_probe_is_handed_out(tmp_path):
    trainer, summary = compared(striped(rows=96, labeled=60), tmp_path, lr=1e-7, head_lr=1e-7)
    assert summary["handed_out"] == "method"
    assert summary["error"] == summary["error_method"]
    average = trainer.state_.ema.module.state_dict()
    saved = Predictor.load(tmp_path / "run", "cpu").model.state_dict()
    assert all(torch.equal(saved[key], average[key]) for key in saved)


def test_hiding_labels_does_not_change_the_run_itself(tmp_path):
    data = striped(rows=96, labeled=60)
    trainer, _ = compared(data, tmp_path)
    alone = Trainer(resnet(), lively(FixMatch), **of_preset(cross_fit=False))
    alone.fit(data)
    one, other = (t.state_.ema.module.state_dict() for t in (trainer, alone))
    assert all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize(
    ("labeled", "options", "reason"),
    [
        (3, {}, "every class has a single label"),
        (12, {"head_init": "random"}, "a head that starts at random has no probe to compare with"),
    ],
)
def test_what_cannot_be_compared_is_said_and_handed_out_as_it_is(tmp_path, capsys, labeled, options, reason):
    _, summary = compared(striped(labeled=labeled), tmp_path, progress=True, **options)
    assert f"not cross-validated: {reason}" in capsys.readouterr().out
    assert "handed_out" not in summary


def test_the_whole_recipe_trains(data):
    trainer = Trainer(resnet(drop_path_rate=0.1), lively(FixMatch), **{**RUN, **RECIPE, "steps": 12})
    summary = trainer.fit(data)
    assert math.isfinite(summary["loss_labeled"])
    assert summary["error"] <= summary["error_probe"] + 0.2
    assert isinstance(trainer.state_.optimizer, torch.optim.AdamW)


@pytest.mark.parametrize("method", [FixMatch, Supervised], ids=name)
def test_pretrained_statistics_are_kept_through_a_run(data, method):
    """By every forward: of training, of the weak view in eval mode, of the average, of an evaluation."""
    trainer = prepared(data, resnet(), lively(method), freeze_bn=True)
    state = trainer.state_
    for model in (state.model, state.ema.module):
        torch.manual_seed(5)
        uneven(model)
    before = statistics(state.model)
    counts = [layer.num_batches_tracked.clone() for layer in batchnorms(state.model)]
    for number in range(4):
        trainer.train_step(number)
        assert not any(layer.training for layer in batchnorms(state.model))
    for model in (state.model, state.ema.module):
        assert all(torch.equal(a, b) for a, b in zip(before, statistics(model), strict=True))
    assert all(torch.equal(a, b.num_batches_tracked) for a, b in zip(counts, batchnorms(state.model), strict=True))
    assert "backbone.net.layer4.0.bn1.weight" in moved(weights(prepared(data, resnet()).state_.model), state.model)


def test_statistics_are_thrown_away_at_once_if_they_are_not_frozen(data):
    """Why freezing matters: at the first step the momentum is 0.9."""
    trainer = prepared(data, resnet(), freeze_bn=False)
    torch.manual_seed(5)
    uneven(trainer.state_.model)
    before = statistics(trainer.state_.model)
    trainer.train_step(0)
    after = statistics(trainer.state_.model)
    assert not any(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_statistics_survive_a_saved_run(data, tmp_path):
    trainer = Trainer(resnet(), FixMatch(), **RUN, freeze_bn=True, out=str(tmp_path / "run"))
    trainer.prepare(data)
    start = statistics(trainer.state_.model)
    trainer.fit(data)
    saved = statistics(trainer.predictor().model)
    assert all(torch.equal(a, b) for a, b in zip(start, saved, strict=True))


def test_a_frozen_backbone_trains_the_head_only(data):
    trainer = prepared(data, resnet(), freeze="backbone", optimizer="adamw", weight_decay=0.1)
    before, fixed = weights(trainer.state_.model), statistics(trainer.state_.model)
    for number in range(3):
        trainer.train_step(number)
    assert moved(before, trainer.state_.model) == {"head.weight", "head.bias"}
    assert all(torch.equal(a, b) for a, b in zip(fixed, statistics(trainer.state_.model), strict=True))


def test_frozen_stages_stay_and_later_ones_learn(data):
    trainer = prepared(data, vit(), freeze=1, optimizer="adamw", weight_decay=0.1)
    before = weights(trainer.state_.model)
    for number in range(2):
        trainer.train_step(number)
    changed = moved(before, trainer.state_.model)
    assert not {key for key in changed if "patch_embed" in key}
    assert {key for key in changed if "blocks.1" in key}
    assert {"head.weight", "head.bias"} <= changed


def test_layers_move_in_proportion_to_their_rates(data):
    """The first step of AdamW without decay moves every weight by its learning rate."""
    options = dict(optimizer="adamw", lr=1e-3, head_lr=4e-3, layer_decay=0.5, weight_decay=0.0, schedule="constant")
    trainer = prepared(data, vit(), **options)
    before, model = weights(trainer.state_.model), trainer.state_.model
    trainer.train_step(0)
    step = {key: (p - before[key]).abs().max().item() for key, p in model.named_parameters()}
    block = "backbone.net.blocks.{}.attn.qkv.weight"
    assert step["head.weight"] == pytest.approx(4e-3, rel=1e-2)
    assert step[block.format(1)] / step[block.format(0)] == pytest.approx(2, rel=1e-2)
    assert step[block.format(1)] == pytest.approx(1e-3, rel=1e-2)  # the topmost layer below the head


def test_warm_up_and_a_selector_that_shortens_the_run(data):
    """8 steps with half of the pool take 4; the rates follow the schedule of the selector after the warm-up."""
    rates = []

    class Watching(Trainer):
        def train_step(self, number):
            super().train_step(number)
            rates.append(self.state_.optimizer.param_groups[0]["lr"])

    options = {**RUN, "steps": 8, "eval_every": 8, "warmup_steps": 2, "lr": 0.1}
    trainer = Watching(resnet(), FixMatch(), selector=RandomOnline(keep=0.5, every=2), **options)
    trainer.fit(data)
    full = trainer.schedule_steps
    cosine = [0.1 * math.cos(7 * math.pi * k / (16 * full)) for k in range(4)]
    assert rates == pytest.approx([cosine[0] / 2, cosine[1], cosine[2], cosine[3]])
    assert rates == [learning_rate(trainer.config, k, full) for k in range(4)]


@pytest.mark.parametrize("scaled", [False, True])
def test_the_gradient_is_clipped_before_the_step(data, scaled):
    """Of a loss that is scaled for half precision, the gradient itself and not a multiple of it."""
    norms = []
    trainer = prepared(data, resnet(), clip_grad=1e-3, lr=1.0)
    if scaled:
        trainer.state_.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def look(*_):
        found = [p.grad.flatten() for p in trainer.state_.model.parameters() if p.grad is not None]
        norms.append(torch.cat(found).norm().item())

    trainer.state_.optimizer.register_step_pre_hook(look)
    trainer.train_step(0)
    assert norms == pytest.approx([1e-3], rel=1e-2)
    moved = trainer.state_.model.state_dict()
    assert all(values.isfinite().all() for values in moved.values())


def test_drop_path_acts_in_training_only(data):
    trainer = prepared(data, vit(drop_path_rate=0.9))
    model, x = trainer.state_.model, torch.randn(4, 3, 32, 32)
    assert not torch.equal(model.train()(x).logits, model(x).logits)
    assert torch.equal(model.eval()(x).logits, model(x).logits)


# Methods of one forward with gradient over labeled and strong images.
TEACHING = [kind for kind in ALGORITHMS if issubclass(kind, PseudoLabeling) and not issubclass(kind, ClosedForm)]


def gradient(trainer, number=1):
    """The gradient of the step's loss in every trained module, and the pseudo labels."""
    found = []
    trainer.state_.optimizer.register_step_pre_hook(
        lambda *_: found.append(
            [None if p.grad is None else p.grad.clone() for m in trainer.state_.modules for p in m.parameters()]
        )
    )
    trainer.train_step(number)
    return found


@pytest.mark.parametrize(
    ("kind", "calibrator", "network"),
    [
        *((kind, None, resnet) for kind in TEACHING),
        *((kind, lively(VCC), resnet) for kind in TEACHING),
        (FixMatch, None, vit),
        (FixMatch, lively(VCC), vit),
    ],
    ids=lambda value: "softmax" if value is None else getattr(value, "__name__", "VCC"),
)
def test_pieces_have_the_gradient_of_the_whole_batch(data, kind, calibrator, network):
    """With BatchNorm frozen, or LayerNorm."""
    method = lively(kind)
    whole, pieces = (
        gradient(prepared(data, network(), copy.deepcopy(method), copy.deepcopy(calibrator), freeze_bn=True, **more))
        for more in ({}, {"micro_batch": 5})
    )
    assert len(whole) == len(pieces) > 0
    for one, other in zip(whole, pieces, strict=True):
        assert [g is None for g in one] == [g is None for g in other]
        left, right = (torch.cat([g.flatten() for g in side if g is not None]) for side in (one, other))
        assert left.norm() > 0
        assert (left - right).norm() <= 1e-4 * left.norm()


def test_dropped_paths_are_the_same_when_a_piece_is_computed_again(data):
    """Else the gradient would be that of another network."""
    trainer = prepared(data, vit(drop_path_rate=0.5, proj_drop_rate=0.5), micro_batch=2)
    x, results = trainer.batches_.at(0).x, []
    model = trainer.state_.model.train()
    for size in (2, None):
        model.zero_grad()
        torch.manual_seed(0)
        pieces = [x] if size else x.split(2)
        step = Step(trainer.batches_.at(0), model, model, trainer.state_.calibrator, micro_batch=size)
        sum(out.logits.square().sum() for piece in pieces for out in step.forward(piece)).backward()
        results.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


def saved_bytes(trainer):
    """Largest number of bytes that autograd holds for the backward pass of a step, at the end of its forward."""
    held, sizes = {}, []

    class Held:
        def __init__(self, tensor):
            self.tensor, self.size = tensor, tensor.numel() * tensor.element_size()
            held[id(self)] = self.size
            sizes.append(sum(held.values()))

        def __del__(self):
            held.pop(id(self), None)

    with torch.autograd.graph.saved_tensors_hooks(Held, lambda box: box.tensor):
        trainer.train_step(0)
    return max(sizes)


def test_pieces_hold_fewer_activations(data):
    whole, pieces = (
        saved_bytes(prepared(data, resnet(), freeze_bn=True, batch_size=8, unlabeled_ratio=3, micro_batch=size))
        for size in (None, 4)
    )
    assert pieces < 0.45 * whole


class Cut(Trainer):
    def train_step(self, number):
        super().train_step(number)
        if number + 1 == 3:
            os.kill(os.getpid(), signal.SIGTERM)


def test_an_interrupted_run_ends_bit_identical(data, tmp_path):
    options = {**RUN, **RECIPE, "steps": 6, "eval_every": 2, "freeze": 1}
    model = resnet(drop_path_rate=0.2)
    whole = Trainer(model, lively(FixMatch), **options, out=str(tmp_path / "whole"))
    whole.fit(data)
    with pytest.raises(Interrupted):
        Cut(model, lively(FixMatch), **options, out=str(tmp_path / "cut")).fit(data)
    resumed = Trainer(model, lively(FixMatch), **options, out=str(tmp_path / "cut"))
    resumed.fit(data, resume=True)
    for part in ("model", "ema"):
        one, other = (getattr(t.state_, part).state_dict() for t in (whole, resumed))
        assert all(torch.equal(one[key], other[key]) for key in one)
    moments = [t.state_.optimizer.state_dict()["state"] for t in (whole, resumed)]
    assert moments[0].keys() == moments[1].keys()
    assert all(torch.equal(moments[0][k]["exp_avg"], moments[1][k]["exp_avg"]) for k in moments[0])


def train_and_save(folder):
    trainer = Trainer(resnet(), lively(FixMatch), **{**RUN, **RECIPE, "micro_batch": 2})
    trainer.fit(striped())
    torch.save(trainer.state_.model.state_dict(), folder / f"{dist.get_rank()}.pt")


def test_two_processes_hold_the_same_weights(tmp_path):
    together(2, lambda: train_and_save(tmp_path), tmp_path / "log.txt")
    one, other = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1))
    assert all(torch.equal(one[key], other[key]) for key in one)
    start = prepared(striped(), resnet()).state_.model.state_dict()
    assert not torch.equal(start["backbone.net.layer4.0.conv1.weight"], one["backbone.net.layer4.0.conv1.weight"])
    same = [key for key in start if key.endswith("running_mean")]
    assert same
    assert all(torch.equal(start[key], one[key]) for key in same)


def test_networks_that_are_not_timms_take_the_options_that_need_no_layers(data):
    options = {key: value for key, value in RECIPE.items() if key != "layer_decay"}
    summary = Trainer(SmallConv(4), lively(FixMatch), **{**RUN, **options}).fit(data)
    assert math.isfinite(summary["loss_labeled"])
