import pytest
import torch
import torch.nn.functional as F
from tests.calibrators.vcc.world import POOL, SIZE, World, make_task
from tests.helpers.tiny import buffers, same

from vcc_infuse.calibrators import Calibrator
from vcc_infuse.calibrators.vcc import VCC
from vcc_infuse.errors import OptionError
from vcc_infuse.utils.serialization import from_config, to_config

VARIANTS = [
    {},
    {"joint": True},
    {"scores": ()},
    {"scores": ("view",), "residual": False},
    {"scores": ("temporal", "ensemble"), "window": 3},
    {"reconstruct": "mlp", "queue_size": 40},
    {"reconstruct": "none"},
    {"reconstruct": "none", "fusion": "printed", "joint": True},
    {"fusion": "minus_square", "start": "staged"},
    {"output": "distribution", "latent_dim": 3},
    {"mc_samples": 2, "dropout": 0.0, "joint": True, "output": "distribution"},
]


@pytest.mark.parametrize("options", VARIANTS, ids=str)
@pytest.mark.parametrize("classes", [2, 4])
def test_every_variant_gives_probabilities_with_the_classifiers_label(options, classes):
    world = World(VCC(min_per_class=2, **options), classes).warm_up()
    step = world.step(50)
    outputs = step.forward_weak(step.batch.views["weak"])
    out = step.confidence(step.batch.views["weak"], outputs)
    assert torch.equal(out.labels, outputs.logits.argmax(1))
    assert torch.allclose(out.probs.sum(1), torch.ones(SIZE), atol=1e-5)
    assert ((out.confidence >= 0) & (out.confidence <= 1)).all()
    assert not out.confidence.requires_grad
    assert not out.probs.requires_grad
    assert (out.loss is None) == (options.get("reconstruct") == "none")
    predicted = world.vcc.eval().predict(outputs)
    assert ((predicted >= 0) & (predicted <= 1)).all()
    assert not predicted.requires_grad


def test_the_defaults_are_those_of_the_paper():
    vcc = VCC()
    assert (vcc.weight, vcc.latent_dim, vcc.window) == (2.0, 16, 1)
    assert set(vcc.scores) == {"ensemble", "temporal", "view"}
    assert (vcc.reconstruct, vcc.fusion, vcc.residual) == ("vae", "corrected", True)
    assert (vcc.labeled_views, vcc.held_out) == ((), 0.0)
    vcc.setup(World(VCC()).model, make_task())
    for net in (vcc.network.encoder, vcc.network.decoder):
        assert [layer.out_features for layer in net if isinstance(layer, torch.nn.Linear)][:2] == [256, 64]


def trained(options):
    """The selection confidence of one fixed batch after some learning."""
    world = World(VCC(min_per_class=2, **options))
    parameters = [*world.vcc.parameters(), *world.model.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    for number in range(10):
        torch.manual_seed(number)
        loss = world.run(world.step(number)).loss
        if loss is not None:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    torch.manual_seed(99)
    return world.run(world.step(99)).confidence


def test_every_option_changes_the_selection():
    default = trained({})
    assert torch.equal(default, trained({}))
    changes = [{"scores": ("view",)}, {"fusion": "printed"}, {"fusion": "minus_square"}, {"normalize_confidence": True}]
    changes += [{"reconstruct": "none"}, {"reconstruct": "mlp"}]
    changes += [{"output": "distribution"}, {"residual": False}, {"joint": True}, {"queue_size": 30}, {"weight": 0.5}]
    changes += [{"target_fraction": 0.5}]
    for options in changes:
        assert not torch.allclose(default, trained(options), atol=1e-4), options


def network_confidence(vcc, outputs):
    """The network's output by hand, with z = 0."""
    features = F.layer_norm(outputs.features, outputs.features.shape[1:])
    zeros = torch.zeros(len(features), vcc.latent_dim)
    probs = outputs.logits.softmax(1)
    change = vcc.network.decoder(torch.cat([probs, features, zeros], 1)).squeeze(1)
    highest = probs.amax(1).clamp(1e-6, 1 - 1e-6)
    return (change + (highest / (1 - highest)).log() * vcc.residual).sigmoid()


@torch.no_grad()
@pytest.mark.parametrize("training", [True, False])
def test_r_itself_is_compared_with_thresholds_from_the_first_step(training):
    world = World(VCC(residual=False)).perturb_network()
    world.vcc.train(training)
    step = world.step(0, torch.arange(SIZE))
    outputs = step.forward_weak(step.batch.views["weak"])
    out = step.confidence(step.batch.views["weak"], outputs)
    torch.testing.assert_close(out.confidence, network_confidence(world.vcc, outputs), atol=1e-5, rtol=0)
    assert (out.confidence < 1 / 4).any(), "no lower bound by the classes"


@torch.no_grad()
def test_predict_is_the_reconstruction():
    world = World(VCC()).perturb_network()
    outputs = world.model.eval()(world.x)
    predicted = world.vcc.eval().predict(outputs)
    torch.testing.assert_close(predicted, network_confidence(world.vcc, outputs), atol=1e-5, rtol=0)
    assert (predicted - outputs.logits.softmax(1).amax(1)).abs().mean() > 0.05


@torch.no_grad()
def test_without_a_network_the_target_selects_and_the_softmax_predicts():
    world = World(VCC(reconstruct="none", min_per_class=2)).warm_up()
    vcc = world.vcc
    step = world.step(50)
    outputs = step.forward_weak(step.batch.views["weak"])
    out = step.confidence(step.batch.views["weak"], outputs)
    slots = (vcc.queue.cursor - SIZE + torch.arange(SIZE)) % vcc.queue.size
    newest = type(vcc.queued())(*(column[slots] for column in vcc.queued()))
    assert torch.equal(out.confidence, vcc.target(newest))
    softmax = outputs.logits.softmax(1).amax(1)
    assert (out.confidence - softmax).abs().mean() > 0.01
    torch.testing.assert_close(world.vcc.eval().predict(outputs), softmax)
    torch.testing.assert_close(step.confidence(step.batch.views["weak"], outputs).confidence, softmax)


def test_the_whole_batch_is_scored():
    world = World(VCC())
    world.run(world.step(0))
    assert world.vcc.queue.pushed == SIZE


def test_weight_scales_the_loss():
    losses = []
    for weight in (1.0, 2.0):
        world = World(VCC(weight=weight))
        torch.manual_seed(1)
        losses.append(world.run(world.step(0)).loss)
    assert torch.allclose(2 * losses[0], losses[1])


@pytest.mark.parametrize("reconstruct", ["vae", "mlp", "none"])
@pytest.mark.parametrize("joint", [True, False])
def test_eval_mode_changes_nothing_and_needs_neither_randomness_nor_ema(reconstruct, joint):
    world = World(VCC(min_per_class=2, reconstruct=reconstruct, joint=joint)).warm_up()
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


def test_ema_runs_once_and_stays_unchanged_and_only_for_the_view_score():
    world = World(VCC())
    sizes, before = [], buffers(world.ema)
    world.ema.register_forward_hook(lambda module, inputs, out: sizes.append(len(inputs[0])))
    world.run(world.step(0))
    assert sizes == [SIZE]
    assert same(before, buffers(world.ema))
    world = World(VCC(scores=("ensemble", "temporal")))
    step = world.step(0)
    step.ema = None
    world.run(step)


def test_batch_of_a_single_pseudo_class():
    world = World(VCC(min_per_class=2))
    world.model.head.bias.data[1] = 100.0
    out = world.warm_up(5).run(world.step(20))
    assert (out.labels == 1).all()
    assert out.confidence.isfinite().all()


def test_a_saved_and_rebuilt_calibrator_predicts_the_same():
    world = World(VCC(scores=("ensemble", "view"), min_per_class=2, joint=True)).warm_up().perturb_network()
    other = from_config(to_config(world.vcc), Calibrator)
    other.setup(world.model, make_task())
    other.load_state_dict(world.vcc.state_dict())
    outputs = world.model.eval()(world.x)
    assert len(outputs.logits) == POOL
    assert torch.equal(other.eval().predict(outputs), world.vcc.eval().predict(outputs))


@pytest.mark.parametrize("joint", [True, False])
def test_autocast_leaves_the_calibrator_in_float32(joint):
    world = World(VCC(min_per_class=2, joint=joint))
    with torch.autocast("cpu", torch.bfloat16):
        world.warm_up()
        out = world.run(world.step(50))
    assert out.loss.dtype == out.confidence.dtype == torch.float32
    assert out.loss.isfinite()
    out.loss.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in world.vcc.parameters())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"scores": ("entropy",)}, "scores must be one of .* got 'entropy'"),
        ({"fusion": "paper"}, "fusion must be one of corrected, minus_square, printed, got 'paper'"),
        ({"dropout": 1.0}, "dropout"),
        ({"queue_size": 0}, "queue_size"),
    ],
)
def test_errors_name_the_option(options, words):
    with pytest.raises(OptionError, match=words):
        VCC(**options)
