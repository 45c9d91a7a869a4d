import pytest
import torch
import torch.nn.functional as F
from tests.calibrators.vcc.world import SIZE, World, make_task
from tests.helpers.tiny import buffers, same

from vcc_infuse.calibrators import Calibrator
from vcc_infuse.calibrators.vcc import RobustVCC
from vcc_infuse.errors import OptionError
from vcc_infuse.types import WeakOutputs
from vcc_infuse.utils.serialization import from_config, to_config

VARIANTS = [
    {},
    {"scores": ()},
    {"scores": ("view",)},
    {"scores": ("temporal", "ensemble"), "window": 3, "match": "confidence"},
    {"reconstruct": "mlp"},
    {"reconstruct": "none"},
    {"reconstruct": "none", "match": "none", "fusion": "printed"},
    {"output": "distribution", "match": "none", "residual": False},
    {"queue_size": 40, "latent_dim": 3, "residual": False},
    {"inference": "reconstruction", "mc_samples": 2, "dropout": 0.0, "target_fraction": 1.0},
]


@pytest.mark.parametrize("options", VARIANTS, ids=str)
@pytest.mark.parametrize("classes", [2, 4])
def test_every_variant_gives_probabilities_with_the_classifiers_label(options, classes):
    world = World(RobustVCC(warmup_fraction=0.0, min_per_class=2, **options), classes).warm_up()
    step = world.step(50)
    outputs = WeakOutputs(*world.model(step.batch.views["weak"]))
    out = step.confidence(step.batch.views["weak"], outputs)
    assert torch.equal(out.labels, outputs.logits.argmax(1))
    assert torch.allclose(out.probs.sum(1), torch.ones(SIZE), atol=1e-5)
    assert torch.equal(out.confidence, out.probs.amax(1))
    assert not out.confidence.requires_grad
    assert (out.loss is None) == (options.get("reconstruct") == "none")
    predicted = world.vcc.eval().predict(outputs)
    assert ((predicted >= 0) & (predicted <= 1)).all()
    assert not predicted.requires_grad


def trained(options):
    """The selection confidence of one fixed batch after some learning."""
    world = World(RobustVCC(warmup_fraction=0.0, min_per_class=2, **options))
    optimizer = torch.optim.SGD(world.vcc.parameters(), lr=0.1) if world.vcc.network else None
    for number in range(10):
        torch.manual_seed(number)
        loss = world.run(world.step(number)).loss
        if optimizer and loss is not None:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    torch.manual_seed(99)
    return world.run(world.step(99)).confidence


def test_every_option_changes_the_selection():
    default = trained({})
    assert torch.equal(default, trained({}))
    changes = [{"match": name} for name in ("none", "confidence")]
    changes += [{"scores": ("view",)}, {"fusion": "printed"}, {"reconstruct": "none"}, {"reconstruct": "mlp"}]
    changes += [{"output": "distribution"}, {"residual": False}, {"queue_size": 30}]
    for options in changes:
        assert not torch.allclose(default, trained(options), atol=1e-3), options


def test_loss_trains_the_network_and_nothing_else():
    world = World(RobustVCC(min_per_class=2)).warm_up()
    step = world.step(50)
    weak = step.batch.views["weak"]
    step.confidence(weak, WeakOutputs(*world.model(weak))).loss.backward()
    assert all(p.grad is None for p in world.model.parameters())
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in world.vcc.parameters())


def test_weight_scales_the_loss():
    losses = []
    for weight in (1.0, 2.0):
        world = World(RobustVCC(weight=weight))
        torch.manual_seed(1)
        losses.append(world.run(world.step(0)).loss)
    assert torch.allclose(2 * losses[0], losses[1])


def test_softmax_selects_during_warmup():
    world = World(RobustVCC(warmup_fraction=0.5, min_per_class=2, reconstruct="none")).warm_up()
    for number, unchanged in ((49, True), (50, False)):
        step = world.step(number)
        probs = step.forward_eval(step.batch.views["weak"]).logits.softmax(1)
        out = world.run(step)
        assert torch.equal(out.probs, probs) == unchanged


@pytest.mark.parametrize("reconstruct", ["vae", "mlp", "none"])
def test_eval_mode_changes_nothing_and_needs_neither_randomness_nor_ema(reconstruct):
    world = World(RobustVCC(warmup_fraction=0.0, min_per_class=2, reconstruct=reconstruct)).warm_up()
    world.vcc.eval()
    world.model.eval()
    step = world.step(60, torch.arange(SIZE))
    step.ema = None
    before, random = buffers(world.vcc), torch.get_rng_state()
    first, second = world.run(step), world.run(step)
    assert torch.equal(first.probs, second.probs)
    assert first.loss is None
    assert torch.equal(torch.get_rng_state(), random)
    assert same(before, buffers(world.vcc))


def test_ema_runs_on_a_part_of_the_batch_and_stays_unchanged():
    world = World(RobustVCC(target_fraction=0.25, scores=("view",)))
    sizes, before = [], buffers(world.ema)
    world.ema.register_forward_hook(lambda module, inputs, out: sizes.append(len(inputs[0])))
    world.run(world.step(0))
    # A quarter of the labeled batch in two views with as many unlabeled images, then a quarter of the pool's.
    assert sizes == [3 * 2, 6]
    assert same(before, buffers(world.ema))


def test_without_the_view_score_the_ema_does_not_run():
    world = World(RobustVCC(scores=("ensemble", "temporal")))
    step = world.step(0)
    step.ema = None
    del step.batch.views["labeled_strong"]
    world.run(step)
    assert world.vcc.temperature.inverse == 1


def test_batch_of_a_single_pseudo_class():
    world = World(RobustVCC(warmup_fraction=0.0, min_per_class=2))
    world.model.head.bias.data[1] = 100.0
    out = world.warm_up(5).run(world.step(20))
    assert (out.labels == 1).all()
    assert out.confidence.isfinite().all()


def perturbed(inference):
    """Outputs, and a VCC whose network is away from the softmax and whose temperature is 4."""
    world = World(RobustVCC(inference=inference, memorization_gate=False))
    world.perturb_network().vcc.eval()
    world.vcc.temperature.strong.inverse.fill_(1 / 2)
    world.vcc.temperature.mixed.inverse.fill_(1 / 8)
    with torch.no_grad():
        return world.vcc, world.model.eval()(world.x)


@torch.no_grad()
def network_logit(vcc, outputs):
    """The network's output by hand, with z = 0."""
    features = F.layer_norm(outputs.features, outputs.features.shape[1:])
    zeros = torch.zeros(len(features), vcc.latent_dim)
    change = vcc.network.decoder(torch.cat([outputs.logits.softmax(1), features, zeros], 1)).squeeze(1)
    return outputs.logits.softmax(1).amax(1).logit(1e-6) + change


def test_predict_is_the_softmax_at_the_learned_temperature_by_default():
    vcc, outputs = perturbed(RobustVCC().inference)
    predicted = vcc.predict(outputs)
    torch.testing.assert_close(predicted, (outputs.logits / 4).double().softmax(1).amax(1), atol=1e-6, rtol=0)
    assert (predicted - outputs.logits.softmax(1).amax(1)).abs().mean() > 0.05


def test_predict_reconstructs_the_confidence():
    vcc, outputs = perturbed("reconstruction")
    softmax = outputs.logits.softmax(1).amax(1)
    expected, predicted = network_logit(vcc, outputs).sigmoid(), vcc.predict(outputs)
    free = expected > 0.5  # below one half the runner-up may bound it
    assert free.sum() > 10
    torch.testing.assert_close(predicted[free], expected[free].to(predicted), atol=1e-4, rtol=0)
    assert (predicted >= expected - 1e-4).all()
    assert (predicted - softmax).abs().mean() > 0.05


def test_a_saved_and_rebuilt_calibrator_predicts_the_same():
    world = World(
        RobustVCC(scores=("ensemble", "view"), warmup_fraction=0.0, min_per_class=2, inference="reconstruction")
    )
    world.warm_up()
    other = from_config(to_config(world.vcc), Calibrator)
    other.setup(world.model, make_task())
    other.load_state_dict(world.vcc.state_dict())
    outputs = world.model.eval()(world.x)
    assert torch.equal(other.eval().predict(outputs), world.vcc.eval().predict(outputs))


def test_autocast_leaves_the_calibrator_in_float32():
    world = World(RobustVCC(warmup_fraction=0.0, min_per_class=2))
    with torch.autocast("cpu", torch.bfloat16):
        world.warm_up()
        step = world.step(50)
        out = step.confidence(step.batch.views["weak"], WeakOutputs(*world.model(step.batch.views["weak"])))
    assert out.loss.dtype == out.confidence.dtype == torch.float32
    assert out.loss.isfinite()
    out.loss.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in world.vcc.parameters())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"scores": ("entropy",)}, "scores must be one of .* got 'entropy'"),
        ({"match": "mean"}, "match"),
        ({"dropout": 1.0}, "dropout"),
        ({"target_fraction": 0.0}, "target_fraction"),
        ({"queue_size": 0}, "queue_size"),
    ],
)
def test_errors_name_the_option(options, words):
    with pytest.raises(OptionError, match=words):
        RobustVCC(**options)
