"""The reference step is the same method and the same network as ours, only written plainly."""

import numpy as np
import pytest
import torch
from tests.helpers.tiny import make_step
from torch import nn

from benchmarks import pil
from benchmarks.plain_loop import plain_step, views
from benchmarks.reference import Reference, out_of_place, plain, reference_step
from benchmarks.workloads import Case, our_step, random_images, random_vectors
from vcc_infuse import FlexMatch, SmallConv, Trainer, WideResNet
from vcc_infuse.models import Classifier, Identity
from vcc_infuse.types import Calibrated


@pytest.mark.parametrize("make", [lambda: WideResNet(10, 1), lambda: WideResNet(10, 1, dropout=0.0), SmallConv])
def test_in_place_activations_change_no_bit(make):
    """Outputs and gradients of our networks are those of networks that write nothing in place."""
    torch.manual_seed(0)
    ours = Classifier.build(make(), (3, 16, 16), 4)
    other = Classifier.build(plain(make()), (3, 16, 16), 4)
    other.load_state_dict(ours.state_dict())
    other.apply(out_of_place)
    x, results = torch.randn(6, 3, 16, 16), []
    for net in (ours, other):
        logits = net(x).logits
        logits.square().sum().backward()
        results.append([logits, *(p.grad for p in net.parameters()), *net.buffers()])
    for one, same in zip(*results, strict=True):
        assert torch.equal(one, same)


def test_flexmatch_rule():
    """Selected rows over several steps, against the library's FlexMatch."""
    data, classes = random_images(8, 3, 60), 3
    reference = Reference(Classifier(nn.Identity(), nn.Linear(2, classes)), data, 2)
    pool = len(data.split.pool)
    method = FlexMatch()
    step = make_step(method, classes=classes, pool=pool)
    generator, both = torch.Generator().manual_seed(0), set()
    for _ in range(12):
        ids = torch.randperm(pool, generator=generator)[:20]
        logits = 3 * torch.randn(20, classes, generator=generator)
        labels, mask = reference.pseudo_labels(logits, ids)
        step.batch = step.batch._replace(pool_ids=ids)
        probs = logits.softmax(1)
        found = method.pseudo_label(Calibrated(probs, probs.amax(1)), step)
        assert torch.equal(found.targets, labels)
        assert torch.equal(found.weights, mask)
        both |= set(mask.tolist())
    assert both == {0.0, 1.0}


def test_a_step_trains_and_averages():
    case = Case("tiny", lambda: None, lambda: SmallConv(2), 2)
    work = reference_step(case, random_images(8, 3, 60))()
    reference = work.__self__
    before = [p.clone() for p in reference.net.parameters()]
    work(0)
    now, mean = list(reference.net.parameters()), list(reference.ema.parameters())
    for old, new, average in zip(before, now, mean, strict=True):
        assert not torch.equal(old, new)
        assert torch.allclose(average, 0.999 * old + 0.001 * new)


def test_pil_views():
    array = np.arange(16 * 16 * 3, dtype=np.uint8).reshape(16, 16, 3)
    values = pil.batch(np.stack([array] * 20), pil.weak)
    assert values.shape == (20, 3, 16, 16)
    raw = torch.from_numpy(array).permute(2, 0, 1).float() / 255
    mean, std = (torch.tensor(each)[:, None, None] for each in (pil.MEAN, pil.STD))
    assert torch.allclose(values.mean((0, 2, 3)), ((raw - mean) / std).mean((1, 2)), atol=0.3)
    assert len({strong.tobytes() for strong in (pil.strong(array) for _ in range(8))}) > 5


@pytest.mark.parametrize("share", [0.25, 1.0])
def test_our_step_covers_the_share(share):
    data = random_vectors(64, 6, 3, (1, 2))
    work = our_step(Case("bank", lambda: data, Identity, 4, False), data, share, malloc=False)()
    (trainer,) = (cell.cell_contents for cell in work.__closure__ if isinstance(cell.cell_contents, Trainer))
    work(0)
    assert trainer.state_.stats.read()["pseudo_label_coverage"] == pytest.approx(share)


@pytest.mark.parametrize("vcc", [False, True])
def test_the_plain_loop_is_the_step_of_the_example(vcc):
    data = random_images(8, 10, 200)
    work = plain_step(Case("tiny", lambda: data, lambda: SmallConv(2), 2), data, vcc=vcc)()
    run, seen = work.args[0], []
    run.model.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    before = [parameter.clone() for parameter in (*run.model.parameters(), *run.vae.parameters())]
    work(0)
    assert [(len(images), images.dtype) for images in seen] == [(14, torch.float32), (2 + 14, torch.float32)]
    after = [*run.model.parameters(), *run.vae.parameters()]
    changed = [not torch.equal(*pair) for pair in zip(before, after, strict=True)]
    assert any(changed[: len(list(run.model.parameters()))])
    assert any(changed[len(list(run.model.parameters())) :]) == vcc
    assert not torch.equal(seen[0], seen[1][2:])


def test_views_of_torchvision_differ_from_image_to_image():
    image = torch.arange(16 * 16 * 3, dtype=torch.uint8).view(3, 16, 16)
    for view in views(16):
        assert len({view(image).numpy().tobytes() for _ in range(8)}) > 5
