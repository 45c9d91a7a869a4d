import importlib
from collections.abc import Sequence

import pytest
import torch
from tests.helpers.tiny import make_step, missing_gradients, run

from vcc_infuse.algorithms import (
    ABC,
    DARP,
    DASO,
    UDA,
    Adsh,
    CoMatch,
    Dash,
    DebiasPL,
    FixMatch,
    FlexMatch,
    FreeMatch,
    MeanTeacher,
    PseudoLabel,
    SimMatch,
    SoftMatch,
)
from vcc_infuse.errors import UserError

WRAPPERS = [ABC, DARP, DASO, DebiasPL]
BASES = [CoMatch, Dash, FixMatch, FlexMatch, FreeMatch, SimMatch, SoftMatch, UDA, Adsh]
every_wrapper = pytest.mark.parametrize("wrapper", WRAPPERS)


@every_wrapper
@pytest.mark.parametrize("base", BASES)
def test_every_base_works_and_all_terms_are_there(wrapper, base):
    method = wrapper(base())
    step = make_step(method, number=90)
    losses = run(method, step)
    plain = base()
    assert set(run(plain, make_step(plain, number=90))) <= set(losses)
    assert missing_gradients(losses, step.model) == []
    assert (method.views, method.unlabeled_ratio) == (base.views, base.unlabeled_ratio)


@every_wrapper
def test_the_base_is_fixmatch_if_not_given(wrapper):
    assert type(wrapper().base) is FixMatch


@pytest.mark.parametrize("wrapper", [DARP, DASO, DebiasPL])
def test_losses_and_pseudo_label_agree(wrapper):
    """A selector calls `pseudo_label` directly, in eval mode, and must get the labels of training."""
    method = wrapper(FixMatch(threshold=0.4))
    step = make_step(method, number=90)
    run(method, step)
    step.number = 91
    method.eval()
    trained = run(method, step).pseudo
    direct = method.pseudo_label(step.confidence(step.batch.views["weak"], step.weak), step)
    assert torch.equal(trained.targets, direct.targets)
    assert torch.equal(trained.weights, direct.weights)


@every_wrapper
def test_wrappers_nest(wrapper):
    """DARP as the outer wrapper: it refines first, and the terms of the inner one are kept."""
    method = DARP(wrapper(FlexMatch()), start_fraction=0.0)
    step = make_step(method, number=90)
    losses = run(method, step)
    assert method.refined.any()
    assert step.weak is not None
    inner = wrapper(FlexMatch())
    assert set(run(inner, make_step(inner, number=90))) == set(losses)


def test_the_core_set_reaches_the_base():
    method = DARP(FlexMatch())
    make_step(method, pool=20)
    method.on_coreset_change(torch.arange(5))
    assert method.base.counts.tolist() == [0, 0, 0, 5]


def test_only_the_labeled_loss_during_the_warm_up_of_dash():
    method = ABC(Dash())
    assert set(run(method, make_step(method, number=0))) == {"labeled"}


def test_a_base_without_strong_views_is_refused_where_they_are_needed():
    for wrapper in (ABC, DASO, DebiasPL):
        with pytest.raises(
            UserError, match=f"{wrapper.__name__} needs a base with strong views, but PseudoLabel has none"
        ):
            wrapper(PseudoLabel())
    method = DARP(PseudoLabel(), start_fraction=0.0)
    run(method, make_step(method))
    assert method.refined.any()


def test_a_method_without_pseudo_labels_is_refused():
    with pytest.raises(UserError, match="DARP needs a base with pseudo labels, but MeanTeacher has none"):
        DARP(MeanTeacher())


def test_the_standard_module_abc_is_not_shadowed():
    ours = importlib.import_module("vcc_infuse.algorithms.imbalance.abc")
    assert ours.ABC is ABC
    assert importlib.import_module("abc").ABCMeta is type(Sequence)
