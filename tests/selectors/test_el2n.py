"""EL2N against a loop over examples, and what its ranking must not be."""

import numpy as np
import torch
import torch.nn.functional as F

from vcc_infuse.selectors import EL2N, Random


def test_the_score_is_the_distance_of_the_strong_view_to_the_weak_views_label(make_pool, eval_mode):
    pool = eval_mode(make_pool())
    selector = EL2N(keep=0.1)
    core = selector.select(pool, 30)
    rows, chunks = selector.selection_.rows, []
    pool.scan(lambda chunk: chunks.append(chunk) or {"n": chunk.weights})
    for chunk in chunks:
        with torch.no_grad():
            p = pool.model(chunk.images).logits.softmax(1)
        expected = [float(np.linalg.norm(p[i].numpy() - F.one_hot(chunk.labels[i], 10).numpy())) for i in range(len(p))]
        expected = np.array(expected) * (chunk.weights > 0).numpy()
        np.testing.assert_allclose(rows.scores[chunk.ids.numpy()], expected, atol=1e-5)
    best = np.argsort(-np.where(rows.selected, rows.scores, -1), kind="stable")[:30]
    assert set(core.ids.tolist()) == set(best.tolist())


def test_the_ranking_is_neither_random_nor_low_confidence_nor_by_class(make_pool):
    selector = EL2N(keep=0.3)
    kept = selector.select(make_pool(), 90).ids.numpy()
    rows = selector.selection_.rows
    assert set(kept) != set(Random(keep=0.3).select(make_pool(), 90).ids.tolist())
    assert rows.selected[kept].all()  # examples without weight would have the largest errors
    least = np.argsort(np.where(rows.selected, rows.confidence, 2))[:90]
    assert len(set(kept) & set(least)) < 80
    dropped = np.setdiff1d(np.flatnonzero(rows.selected), kept)
    assert len(set(rows.labels[dropped])) > 5
    for c in set(rows.labels[dropped]):  # no class is ranked lower as a whole
        assert rows.scores[dropped[rows.labels[dropped] == c]].max() <= rows.scores[kept].min()


def test_scores_are_averaged_over_refreshes(make_pool):
    pools = [make_pool(number=n) for n in (1, 2)]
    single = []
    for pool in pools:
        selector = EL2N(keep=0.2, score_momentum=0)
        selector.select(pool, 60)
        single.append(selector.selection_.rows)
    selector = EL2N(keep=0.2, score_momentum=0.25)
    for pool in pools:
        selector.select(pool, 60)
    both = single[0].selected & single[1].selected
    expected = 0.25 * single[0].scores + 0.75 * single[1].scores
    np.testing.assert_allclose(selector.selection_.rows.scores[both], expected[both], rtol=1e-5)
    fresh = ~single[0].selected & single[1].selected
    np.testing.assert_allclose(selector.selection_.rows.scores[fresh], single[1].scores[fresh], rtol=1e-5)
