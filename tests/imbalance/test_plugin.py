import copy
import importlib
from collections.abc import Sequence

import pytest
import torch
from tests.helpers.tiny import buffers, make_step, missing_gradients, part_of, run, same, two_processes

from vcc_infuse.algorithms import (
    UDA,
    CoMatch,
    Dash,
    FixMatch,
    FlexMatch,
    FreeMatch,
    MeanTeacher,
    PseudoLabel,
    SimMatch,
    SoftMatch,
)
from vcc_infuse.errors import UserError
from vcc_infuse.imbalance import ABC, DARP, DASO, Adsh, DebiasPL

PLUGINS, BASES = (
    [ABC, DARP, DASO, DebiasPL],
    [CoMatch, Dash, FixMatch, FlexMatch, FreeMatch, SimMatch, SoftMatch, UDA, Adsh],
)
plugins = pytest.mark.parametrize("plugin", PLUGINS)


@plugins
@pytest.mark.parametrize("base", BASES)
def test_every_base_works_and_all_terms_are_there(plugin, base):
    method = plugin(base())
    step = make_step(method, number=90)
    losses = run(method, step)
    plain = base()
    assert set(run(plain, make_step(plain, number=90))) <= set(losses)
    assert missing_gradients(losses, step.model) == []
    assert (method.views, method.ratio) == (base.views, base.ratio)


@plugins
def test_the_base_is_fixmatch_if_not_given(plugin):
    assert type(plugin().base) is FixMatch


@pytest.mark.parametrize("plugin", [DARP, DASO, DebiasPL])
def test_losses_and_the_rule_for_selectors_agree(plugin):
    """A selector asks `pseudo_label` itself, in eval mode, and must hear what training hears."""
    method = plugin(FixMatch(threshold=0.4))
    step = make_step(method, number=90)
    run(method, step)
    step.number = 91
    method.eval()
    told = run(method, step).pseudo
    asked = method.pseudo_label(step.confidence(step.batch.views["weak"], step.weak), step)
    assert torch.equal(told.targets, asked.targets)
    assert torch.equal(told.weights, asked.weights)


@pytest.mark.parametrize("plugin", [*PLUGINS, Adsh])
def test_two_processes_remember_what_one_does(plugin):
    torch.manual_seed(0)
    alone = plugin()
    step = make_step(alone, number=90)
    step.forward_weak_strong(step.batch.views["weak"], step.batch.x)
    start = copy.deepcopy(alone)
    alone.pseudo_label(step.confidence(step.batch.views["weak"], step.weak), step)

    def work(rank, gather):
        mine, method = part_of(step, rank, gather), copy.deepcopy(start)
        method.pseudo_label(mine.confidence(mine.batch.views["weak"], mine.weak), mine)
        return buffers(method)

    for found in two_processes(work):
        for name, value in buffers(alone).items():
            torch.testing.assert_close(found[name], value, msg=name)


@plugins
def test_plug_ins_nest(plugin):
    """DARP outside: it refines first, and the inner plug-in's terms are kept."""
    method = DARP(plugin(FlexMatch()), start=0.0)
    step = make_step(method, number=90)
    losses = run(method, step)
    assert method.refined.any()
    assert step.weak is not None
    inner = plugin(FlexMatch())
    assert set(run(inner, make_step(inner, number=90))) == set(losses)


def test_the_core_set_reaches_the_base():
    method = DARP(FlexMatch())
    make_step(method, pool=20)
    method.restrict(torch.arange(5))
    assert method.base.counts.tolist() == [0, 0, 0, 5]


def test_only_the_labeled_loss_while_dash_warms_up():
    method = ABC(Dash())
    assert set(run(method, make_step(method, number=0))) == {"labeled"}


def test_a_single_weak_view_is_refused_where_a_strong_one_is_needed():
    for plugin in (ABC, DASO, DebiasPL):
        with pytest.raises(UserError, match=f"{plugin.__name__} learns from strong views, which PseudoLabel has not"):
            plugin(PseudoLabel())
    method = DARP(PseudoLabel(), start=0.0)
    run(method, make_step(method))
    assert method.refined.any()


def test_a_method_without_pseudo_labels_is_refused():
    with pytest.raises(UserError, match="DARP corrects pseudo labels, which MeanTeacher has not"):
        DARP(MeanTeacher())


@pytest.mark.parametrize("plugin", [*PLUGINS, Adsh])
def test_state_moves_on_in_training_and_rests_in_eval_mode(plugin):
    method = plugin()
    step = make_step(method, number=90)
    before = buffers(method)
    run(method, step)
    moved = buffers(method)
    assert same(before, moved) == (plugin is ABC)
    run(method.eval(), step)
    assert same(moved, buffers(method))


def test_the_standard_module_abc_is_still_itself():
    ours = importlib.import_module("vcc_infuse.imbalance.abc")
    assert ours.ABC is ABC
    assert importlib.import_module("abc").ABCMeta is type(Sequence)


STATE = [
    (DARP, {"probs", "seen", "refined"}),
    (DASO, {"bank.rows", "bank.pushed", "counting", "counted"}),
    (DebiasPL, {"mean"}),
    (Adsh, {"latest", "labels", "thresholds"}),
]


@pytest.mark.parametrize(("plugin", "names"), STATE)
def test_a_checkpoint_holds_the_state(plugin, names):
    method, other = plugin(), plugin()
    step = make_step(method, number=90)
    make_step(other)
    run(method, step)
    assert names <= set(method.state_dict())
    other.load_state_dict(method.state_dict())
    step.number, method.training, other.training = 91, False, False
    told, again = (run(each, step).pseudo for each in (method, other))
    assert torch.equal(told.targets, again.targets)
    assert torch.equal(told.weights, again.weights)
