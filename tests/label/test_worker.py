"""Training beside the server: the newest labels win, and answers stand where their images are."""

import time
from dataclasses import replace

import numpy as np
import pytest

from vcc_infuse import LinearProbe, SelfTraining
from vcc_infuse.label.embedding import FEATURES, FeatureRows, open_features
from vcc_infuse.label.jobs import Job
from vcc_infuse.label.thumbnails import Records
from vcc_infuse.label.worker import REGROUPED, Learner, Overtaken, answer_jobs
from vcc_infuse.pool_audit import PoolGroups, suggest_labels
from vcc_infuse.run_config import BEST_ON_BANKS

IMAGES = 90
# CPU time in yardsticks: 1.5 of what was measured, so that twice the work is too much.
LIMITS = {"quick": 4.2, "groups": 9.2, "full": 39.0}
KEYS = [bytes([number] * 16) for number in range(IMAGES)]


def truth(image):
    return image % 3


def write(out, images, seed=0, noise=0.5):
    """Features of three groups, far apart, in any order."""
    rng = np.random.default_rng(seed)
    with open_features(out, b"n" * 16) as records:
        for image in images:
            row = np.eye(3)[truth(image)].repeat(4) * 4 + rng.normal(0, noise, 12)
            records.add(KEYS[image], row.astype(np.float16).tobytes())


def job(labeled, version=1, classes=(5, 2, 9), full=False, audit=()):
    """Class numbers need not be in order, nor without gaps."""
    label = np.full(IMAGES, -1, np.int32)
    label[list(labeled)] = [classes[truth(image)] for image in labeled]
    masks = np.zeros((3, IMAGES), bool)
    masks[2, list(audit)] = True
    return Job(version, label, *masks, classes, tuple(map(str, classes)), 5.0, full)


def test_answers_stand_where_their_images_are(tmp_path):
    order = np.random.default_rng(1).permutation(IMAGES)
    write(tmp_path, order[:60])
    learner = Learner(tmp_path, KEYS)
    answer = learner.quick(job(order[:15], audit=order[:4]))
    assert answer.kind == "quick"
    assert np.isfinite(answer.probs[order[:60]]).all()
    assert np.isnan(answer.probs[order[60:]]).all()
    assert answer.probs[order[:60]].argmax(1).tolist() == [truth(i) for i in order[:60]]
    assert np.allclose(answer.probs[order[:60]].astype(float).sum(1), 1, atol=0.01)
    assert answer.wrong == (0, 4)
    suggested = [image for image, _ in answer.following]
    assert set(suggested) <= set(order[15:60].tolist())
    write(tmp_path, order[60:], seed=1)
    assert np.isfinite(learner.quick(job(order[:15])).probs).all()


def spoiled(request, images):
    """The same job with another class for some images."""
    label = request.label.copy()
    label[list(images)] = np.where(label[list(images)] == 5, 2, 5)
    return replace(request, label=label)


@pytest.mark.parametrize("kind", ["quick", "full"])
def test_the_model_never_learns_from_audit_images_and_is_measured_on_them(tmp_path, kind):
    write(tmp_path, range(IMAGES))
    audit = range(20, 30)
    request = job(range(30), audit=audit, full=True)
    wrong = spoiled(request, range(20, 24))
    learner = Learner(tmp_path, KEYS)
    answers = [answer_of(learner, kind, each) for each in (request, wrong)]
    np.testing.assert_array_equal(*(answer.probs for answer in answers))
    assert [answer.wrong for answer in answers] == [(0, 10), (4, 10)]
    assert [answer.labels for answer in answers] == [20, 20]
    shown = [image for image, _ in answers[0].following]
    assert not set(shown) & set(audit)
    taught = answer_of(learner, kind, spoiled(request, range(20)))
    assert taught.wrong[0] > 4  # other labels do change the model


def answer_of(learner, kind, request):
    quick = learner.quick(request)
    return quick if kind == "quick" else learner.full(request, lambda: None)


@pytest.mark.parametrize(("error", "takes_over"), [(0.0, False), (-1.0, True)])
def test_the_default_method_takes_over_where_it_answers_hidden_labels_better(tmp_path, monkeypatch, error, takes_over):
    write(tmp_path, range(IMAGES))
    learner = Learner(tmp_path, KEYS)
    request = job(range(12), full=True)
    said = np.eye(3, dtype=np.float32)[np.zeros(IMAGES, int)]
    monkeypatch.setattr("vcc_infuse.label.worker.train_default", lambda *_: (said, error))
    quick = learner.quick(request)
    full = learner.full(request, lambda: None)
    assert full.kind == "full"
    assert (full.probs == (said if takes_over else quick.probs)).all()


def test_labels_outside_of_the_graph_are_joined_to_it(tmp_path, monkeypatch):
    monkeypatch.setattr("vcc_infuse.label.worker.MOST_COMPARED", 40)
    write(tmp_path, range(IMAGES))
    learner = Learner(tmp_path, KEYS)
    answer = learner.quick(job(range(6)))
    assert answer.probs.argmax(1).tolist() == [truth(image) for image in range(IMAGES)]
    assert len(learner._linked) == 40


def test_before_two_classes_there_is_no_model_but_a_next_image(tmp_path):
    learner = Learner(tmp_path, KEYS)
    assert learner.quick(job([])).kind == "none"
    write(tmp_path, range(IMAGES))
    for labeled in ([], [0, 3]):
        answer = learner.quick(job(labeled))
        assert (answer.kind, answer.probs) == ("none", None)
        assert answer.following


def test_the_default_method_leaves_out_classes_without_labels(tmp_path):
    write(tmp_path, range(IMAGES))
    learner = Learner(tmp_path, KEYS)
    labeled = [image for image in range(20) if truth(image) != 1]
    request = job(labeled, full=True)
    learner.quick(request)
    answer = learner.full(request, lambda: None)
    assert (answer.kind, answer.labels, answer.probs.shape) == ("full", len(labeled), (IMAGES, 3))
    assert (answer.probs[:, 1] == 0).all()
    right = [image for image in range(IMAGES) if truth(image) != 1]
    assert (answer.probs[right].argmax(1) == [truth(image) for image in right]).all()


class Fake:
    """Notes what is asked; a full training looks for newer jobs three times."""

    def __init__(self):
        self.log = []

    def quick(self, request):
        self.log.append(("quick", request.version))
        return ("quick", request.version)

    def full(self, request, watch):
        self.log.append(("full", request.version))
        for _ in range(3):
            watch()
        return ("full", request.version)

    def copies(self):
        return None


def run(*script):
    """Hand out jobs as they are asked for; None means that none waits."""
    left = list(script)
    answers = []

    def receive(wait):
        if not left:
            if wait:
                raise EOFError
            return None
        return left.pop(0)

    fake = Fake()
    with pytest.raises(EOFError):
        answer_jobs(fake, receive, answers.append)
    return fake.log, answers


def test_newer_labels_end_a_run_only_if_they_change_much():
    few = job(range(10), 1, full=True)
    little_more = job(range(11), 2, full=True)
    many_more = job(range(40), 3, full=True)
    log, answers = run(few, None, little_more, None)
    assert log == [("quick", 1), ("full", 1), ("quick", 2), ("quick", 2), ("full", 2)]
    assert answers[-1] == ("full", 2)
    log, answers = run(few, None, many_more)
    assert log == [("quick", 1), ("full", 1), ("quick", 3), ("full", 3)]
    assert ("full", 1) not in answers


@pytest.mark.parametrize(
    ("other", "overtaken"),
    [
        (job(range(10)), False),
        (job(range(11)), False),
        (job(range(30)), True),
        (job(range(10), classes=(5, 2, 7)), True),
        (job([]), True),
    ],
)
def test_what_overtakes_a_run(other, overtaken):
    assert job(range(10)).overtaken_by(other) is overtaken


@pytest.mark.parametrize("call", [1, 2, 3, 7])
def test_a_run_that_is_overtaken_stops_between_any_two_fits(tmp_path, monkeypatch, call):
    """One fit on all labels and one for each of five folds."""
    fits = []
    solve = SelfTraining.solve
    monkeypatch.setattr(SelfTraining, "solve", lambda *given: fits.append(1) or solve(*given))
    write(tmp_path, range(IMAGES))
    learner = Learner(tmp_path, KEYS)
    request = job(range(30), full=True)
    learner.quick(request)
    calls = 0

    def watch():
        nonlocal calls
        calls += 1
        if calls == call:
            raise Overtaken

    with pytest.raises(Overtaken):
        learner.full(request, watch)
    assert len(fits) == call - 1


@pytest.mark.parametrize("method", [SelfTraining, LinearProbe])
def test_the_default_method_is_what_train_takes_on_a_bank_whatever_that_is(tmp_path, monkeypatch, method):
    monkeypatch.setitem(BEST_ON_BANKS, "algorithm", method.__name__)
    fits = []
    solve = method.solve
    monkeypatch.setattr(method, "solve", lambda *given: fits.append(1) or solve(*given))
    write(tmp_path, range(IMAGES))
    learner = Learner(tmp_path, KEYS)
    learner.refresh()
    assert learner.full(job(range(30), full=True), lambda: None).kind == "full"
    assert len(fits) == 6


def test_suggestions_are_those_of_new_groups_which_are_kept_for_sixteen_labels(tmp_path, monkeypatch):
    made = []
    assign = PoolGroups._assign
    monkeypatch.setattr(PoolGroups, "_assign", lambda groups, number: made.append(number) or assign(groups, number))
    monkeypatch.setattr("vcc_infuse.label.worker.NEXT", 4)
    write(tmp_path, range(IMAGES), noise=2.0)
    learner = Learner(tmp_path, KEYS)
    for labels in range(10, 45):
        answer = learner.quick(job(range(labels)))
        assert 4 <= len(answer.following) < 4 + REGROUPED
        given = np.where(np.arange(IMAGES) < labels, np.arange(IMAGES) % 3, -1)
        probs = learner._fit(given, 3)
        fresh = suggest_labels(
            learner._unit, given, probs=probs, count=len(answer.following), classes=3, names=("5", "2", "9")
        )
        assert answer.following == list(zip(fresh.rows.tolist(), fresh.reasons, strict=True))
    assert len(made) == 3 + 35  # and anew for each of the fresh ones
    assert sorted(set(made)) == [16, 32, 48]


def yardstick():
    """CPU seconds of what every machine does alike: products of matrices, and sums through memory."""
    square = np.random.default_rng(0).standard_normal((1000, 1000)).astype(np.float32)
    began = time.process_time()
    for _ in range(20):
        (square @ square).sum()
    return time.process_time() - began


@pytest.mark.slow
def test_ten_thousand_photos_are_learned_from_in_the_time_of_some_matrix_products(tmp_path):
    """In CPU time of this process relative to a yardstick, which a slower or a busier machine slows down, too."""
    count = 10_000
    rng = np.random.default_rng(0)
    keys = [number.to_bytes(16, "big") for number in range(1, count + 1)]
    answers = rng.integers(0, 10, count)
    rows = (rng.normal(0, 0.3, (10, 1280))[answers] + rng.standard_normal((count, 1280))).astype(np.float16)
    with open_features(tmp_path, b"n" * 16) as records:
        for key, row in zip(keys, rows, strict=True):
            records.add(key, row.tobytes())
    learner = Learner(tmp_path, keys)
    nobody = np.zeros(count, bool)

    def request(labels):
        label = np.where(np.arange(count) < labels, answers, -1)
        return Job(1, label, nobody, nobody, nobody, tuple(range(10)), tuple("abcdefghij"), 5.0, True)

    def cost(work, *labels):
        """The least of a few: whatever else the machine does only adds."""
        costs = []
        for number in labels:
            before = yardstick()
            began = time.process_time()
            work(request(number))
            spent = time.process_time() - began
            costs.append(2 * spent / (before + yardstick()))
        return min(costs)

    learner.quick(request(388))
    assert cost(learner.quick, 389, 390, 391) < LIMITS["quick"]  # the same groups
    assert cost(learner.quick, 405, 421, 437) < LIMITS["groups"]  # new ones
    assert cost(lambda job: learner.full(job, lambda: None), 400, 401) < LIMITS["full"]


def test_features_of_another_network_are_not_mixed(tmp_path):
    write(tmp_path, range(6))
    open_features(tmp_path, b"n" * 16).close()
    assert len(Learner(tmp_path, KEYS).rows.images) == 0
    open_features(tmp_path, b"m" * 16).close()
    with Records(tmp_path / FEATURES) as records:
        assert records.keys.tolist() == [b"m" * 16]
    assert (tmp_path / FEATURES).stat().st_size < 40


@pytest.mark.parametrize(("installed", "most", "found"), [(True, 100, True), (True, 30, False), (False, 100, False)])
def test_copies_among_many_images_need_faiss(tmp_path, monkeypatch, installed, most, found):
    keys = [bytes([number]) * 16 for number in range(40)]
    rows = np.random.default_rng(0).normal(size=(40, 32)).astype(np.float16)
    rows[7] = rows[3]
    with Records(tmp_path / FEATURES) as records:
        for key, row in zip(keys, rows, strict=True):
            records.add(key, row.tobytes())
    for name, value in (("MOST_COMPARED", 30), ("MOST_SEARCHED", most), ("has_graph", lambda: installed)):
        monkeypatch.setattr(f"vcc_infuse.label.worker.{name}", value)
    learner = Learner(tmp_path, keys)
    learner.refresh()
    assert learner.copies() == ([[3, 7]] if found else None)


def test_features_of_files_that_are_gone_are_left_out(tmp_path):
    write(tmp_path, range(6))
    stored = FeatureRows(tmp_path / FEATURES, [KEYS[4], b"x" * 16, KEYS[1]])
    assert stored.refresh()
    assert stored.images.tolist() == [2, 0]
    whole = FeatureRows(tmp_path / FEATURES, KEYS)
    whole.refresh()
    assert (stored.features == whole.features[[1, 4]]).all()
    assert not FeatureRows(tmp_path / FEATURES, [b"x" * 16]).refresh()
