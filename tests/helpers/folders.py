"""Run folders written by hand, as a run would leave them, with metrics that a test can recompute."""

import json

import numpy as np

DIGITS = [str(i) for i in range(10)]
NASTY = [
    "<script>alert(1)</script>",
    "<b>x</b>",
    "&amp;",
    'it\'s "quoted"',
    "</script><img src=x onerror=alert(2)>",
    "%{x}",
]

FILES = ["a.png", "<script>alert(3)</script>.png", "'\"><img src=x onerror=alert(4)>\udcff.png"]


def diagram(confidence, correct, bins=15):
    """A reliability table by a slow loop."""
    place = [min(int(c * bins), bins - 1) for c in confidence]
    rows = [[i for i, p in enumerate(place) if p == b] for b in range(bins)]
    return {
        "count": [len(row) for row in rows],
        "accuracy": [float(np.mean(correct[row])) if row else None for row in rows],
        "confidence": [float(np.mean(confidence[row])) if row else None for row in rows],
    }


def make_run(path, classes=DIGITS, seed=0, evaluations=4, finished=True, extras=True, selector=True, images=True):
    """Write a folder; `extras` are the files that older runs do not have."""
    rng, k = np.random.default_rng(seed), len(classes)
    path.mkdir(parents=True)
    (path / "config.yaml").write_text("data: digits\nnote: <i>config</i>\n")
    truth, predicted = np.repeat(np.arange(k), 12), None
    lines = []
    for n in range(1, evaluations + 1):
        predicted = np.where(rng.random(len(truth)) < 0.5 + 0.1 * n, truth, rng.integers(0, k, len(truth)))
        confidence, calibrated = rng.uniform(0.3, 1, (2, len(truth)))
        right = predicted == truth
        line = {
            "step": 10 * n, "seconds": 1.5 * n, "error": float(1 - right.mean()), "loss_labeled": 1 / n,
            "loss_unlabeled": 2 / n, "ece": 0.2 / n, "ece_calibrated": 0.1 / n, "nll": 1.0 / n,
            "error_per_class": [0.1] * k, "reliability": diagram(confidence, right),
            "reliability_calibrated": diagram(calibrated, right),
            "pseudo_label_coverage": 0.2 * n, "pseudo_label_precision": 0.9,
            "pseudo_label_coverage_per_class": rng.random(k).tolist(),
            "pseudo_label_precision_per_class": [None, *rng.random(k - 1).tolist()],
        }  # fmt: skip
        lines.append(line | ({"threshold_per_class": rng.random(k).tolist()} if extras else {}))
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if selector:
        (path / "selections.jsonl").write_text(json.dumps(selection(k, rng)) + "\n")
    if extras and evaluations:
        floats = dict(confidence=confidence.astype(np.float32), calibrated=calibrated.astype(np.float32))
        np.savez_compressed(path / "predictions.npz", truth=truth, predicted=predicted, **floats)
        if images:
            np.savez_compressed(path / "gallery.npz", **gallery(k, rng))
    if finished:
        summary = {"error_best": 0.1, "steps": 10 * evaluations, "seconds_train": 9.0, "classes": list(classes)}
        if predicted is not None:
            summary |= {"per_class": per_class(classes, truth, predicted), "advice": ["label more of <i>it</i>"]}
            summary |= {"abstain": [cut(0.5, 0.7, True), cut(0.8, 0.4, False)]}
        summary |= {"labels": 40, "coreset_size": 50, "versions": {"torch": "2.9"}, **(lines[-1] if lines else {})}
        (path / "summary.json").write_text(json.dumps(summary))
    return path


def per_class(classes, truth, predicted):
    """A row per class; every third is never mistaken for another."""
    return [{
        "class": name, "labels": 10 + i, "test_images": int((truth == i).sum()), "answers": int((predicted == i).sum()),
        "error": float((predicted != truth)[truth == i].mean()), "taken_for": classes[0] if i % 3 else None,
        "taken_for_images": i % 3, "pseudo_label_share": 1 / len(classes),
    } for i, name in enumerate(classes)]  # fmt: skip


def cut(value, coverage, suggested):
    return {"cut": value, "answered": round(100 * coverage), "coverage": coverage, "error": 0.1, "error_low": 0.04,
            "error_high": 0.19, "suggested": suggested}  # fmt: skip


def selection(k, rng):
    pool, kept = rng.dirichlet(np.ones(k)), rng.dirichlet(np.ones(k))
    return {
        "step": 30, "chosen_by": "INFUSE", "kept": 50, "kept_share": 0.4, "weight_largest": 1.0, "overlap": 0.5,
        "kept_share_per_class": kept.tolist(), "pool_share_per_class": pool.tolist(),
        "kept_share_per_true_class": kept.tolist(), "precision_of_kept": 0.9, "precision_of_pool": 0.8,
        "score_histogram": {"edges": [-1.0, 0.0, 1.0], "all": [70, 30], "kept": [20, 30]},
    }  # fmt: skip


def gallery(k, rng):
    columns = {}
    for part, column in (("helpful", "score"), ("harmful", "score"), ("mistakes", "confidence")):
        columns |= {
            f"{part}_images": rng.integers(0, 255, (3, 8, 8, 3), dtype=np.uint8),
            f"{part}_names": np.array(FILES),
            f"{part}_label": np.array([0, 1, 1]), f"{part}_truth": np.array([0, 0, -1]),
            f"{part}_{column}": np.array([0.9, 0.5, 0.1], np.float32),
        }  # fmt: skip
    behind = {"images": columns["mistakes_images"], "names": np.array(FILES), "label": [0, 1, 1], "truth": [0, 0, 1],
              "confidence": [0.4, 0.9, 0.3]}  # fmt: skip
    return columns | {f"cells_{name}": np.asarray(column) for name, column in behind.items()}
