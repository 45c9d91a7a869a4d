import torch
import torch.nn.functional as F
from tests.calibrators.vcc.world import SIZE, World
from tests.helpers.tiny import two_processes

from vcc_infuse.calibrators.vcc import VCC


def test_view_score_crosses_the_heads_of_model_and_ema():
    """Each network's features go through the other's head; the EMA differs from the model in both."""
    world = World(VCC(scores=("view",), target_fraction=1.0, queue_size=SIZE))
    step = world.step(0)
    images = step.batch.views["weak"]
    with torch.no_grad():
        outputs, ema_outputs = world.model(images), world.ema(images)
        step.confidence(images, outputs)
        crossed = world.ema.head(outputs.features).softmax(1), world.model.head(ema_outputs.features).softmax(1)
    straight = outputs.logits.softmax(1), ema_outputs.logits.softmax(1)
    expected, uncrossed = (
        F.kl_div(q.clamp_min(1e-7).log(), p, reduction="none").sum(1) for p, q in (crossed, straight)
    )
    scores = world.vcc.score_memory.memory["scores"].squeeze(1)
    torch.testing.assert_close(scores, expected, atol=1e-5, rtol=1e-4)
    assert (expected - uncrossed).abs().max() > 0.1, "the case cannot tell them apart"


def test_first_visit_has_no_temporal_score_but_the_second_has():
    world = World(VCC(scores=("temporal",), target_fraction=1.0, queue_size=SIZE))
    for number, missing in ((0, True), (1, False)):
        world.run(world.step(number, torch.arange(SIZE)))
        assert bool(world.vcc.score_memory.memory["scores"].isnan().all()) == missing


def test_matching_keeps_the_coverage_of_every_class_and_leaves_classes_with_few_rows():
    world = World(VCC(warmup_fraction=0.0, queue_size=SIZE * 20, target_fraction=1.0)).warm_up(20).perturb_network()
    score_memory = world.vcc.score_memory
    for number in range(20, 40):
        world.run(world.step(number))
    labels, confidence = score_memory.memory["labels"], score_memory.memory["confidence"]
    rest = ((1 - confidence) / 3)[:, None].repeat(1, 4)
    probs = rest.scatter(1, labels[:, None], confidence[:, None])
    matched = score_memory.matched(score_memory.memory["raw"], probs, "confidence")
    assert not torch.allclose(matched, confidence, atol=0.01)
    for label in range(4):
        for threshold in (0.4, 0.6, 0.9):
            own = labels == label
            assert (matched[own] >= threshold).sum() == (confidence[own] >= threshold).sum()
    score_memory.min_per_class = int(labels.bincount(minlength=4).min()) + 1
    rare = labels == labels.bincount(minlength=4).argmin()
    matched = score_memory.matched(score_memory.memory["raw"], probs, "confidence")
    assert torch.equal(matched[rare], probs.amax(1)[rare])
    assert not torch.equal(matched[~rare], probs.amax(1)[~rare])


def test_gathered_memories_are_identical_on_two_processes():
    worlds = [World(VCC(warmup_fraction=0.0, min_per_class=2, target_fraction=0.5)) for _ in range(2)]
    pool = len(worlds[0].x)

    def work(rank, gather):
        for number in range(5):
            ids = torch.arange(number, number + 2 * SIZE)[rank::2] % pool
            worlds[rank].run(worlds[rank].step(number, ids, gather=gather))
        return dict(worlds[rank].vcc.named_buffers())

    one, other = two_processes(work)
    assert one["score_memory.memory.pushed"] == 5 * SIZE
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name].nan_to_num(-1), other[name].nan_to_num(-1)), name
    assert (one["score_memory.history.stamp"] >= 0).sum() == min(pool, 2 * SIZE + 4)
