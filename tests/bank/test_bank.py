"""Banks against a slow loop over images, and against death, damage and full disks."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from vcc_infuse import INFUSE, FixMatch, Identity, Predictor, SSLData, Trainer
from vcc_infuse.augment.views import ImageViews
from vcc_infuse.bank import bank as module
from vcc_infuse.bank import embed as embedding
from vcc_infuse.bank import encoder as encoder_module
from vcc_infuse.bank import storage
from vcc_infuse.bank.bank import Bank, BankConfig
from vcc_infuse.bank.embed import embed_data
from vcc_infuse.bank.encoder import ForwardOptions
from vcc_infuse.data.dataset import Dataset, Examples
from vcc_infuse.data.split import balanced
from vcc_infuse.errors import OptionError, UserError
from vcc_infuse.models import Timm
from vcc_infuse.utils.seeding import seed_chunk

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.3, 0.25)
CONFIG = BankConfig(weak=1, strong=2)


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch):
    monkeypatch.setattr(storage, "CHUNK", 8)
    monkeypatch.setattr(encoder_module, "fast_bf16", lambda device: False)  # whatever this machine can do


def make_encoder(seed=0, scale=1.0):
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
    )
    with torch.no_grad():
        net[0].weight.mul_(scale)
    return net


def make_dataset(seed=0, train=20, test=5):
    rng = np.random.default_rng(seed)
    parts = [Examples(rng.integers(0, 256, (n, 12, 12, 3), np.uint8), np.arange(n) % 2) for n in (train, test)]
    return Dataset(*parts, ("a", "b"), MEAN, STD)


def make_bank(cache, dataset=None, encoder=None, config=CONFIG, mean=MEAN, **options):
    views = ImageViews(mean, STD, flip=options.pop("flip", True))
    return Bank(dataset or make_dataset(), encoder or make_encoder(), views, config, cache=str(cache), **options)


def fill(bank, **options):
    return bank.build(progress=False, **options)


@torch.no_grad()
def slow_features(bank, part, seed=0):
    """Chunk by chunk in the order of the slots, without overlap, batches or files."""
    x, names = bank.images[part], CONFIG.names if part == "train" else ("plain",)
    rows = []
    for number, start in enumerate(range(0, len(x), 8)):
        seed_chunk(seed, ("train", "test").index(part), number)
        raw = torch.from_numpy(np.stack([x[i] for i in range(start, min(start + 8, len(x)))]))
        views = [bank.views(name, raw) for name in names]
        rows += [torch.stack([bank.encoder(view[i : i + 1])[0] for view in views]) for i in range(len(raw))]
    return torch.stack(rows)


# --- what it holds


@pytest.mark.parametrize("batch_size", [None, 3, 64])
def test_features_are_those_of_a_slow_loop(tmp_path, batch_size):
    bank = fill(make_bank(tmp_path, config=replace(CONFIG, batch_size=batch_size), seed=7))
    for part, shape in (("train", (20, 4, 16)), ("test", (5, 1, 16))):
        found = bank.features[part]
        assert (found.shape, found.dtype) == (shape, np.float16)
        expected = slow_features(bank, part, seed=7)
        np.testing.assert_allclose(found, expected, rtol=2e-3, atol=1e-4)
        assert len(np.unique(expected.numpy(), axis=0)) == shape[0]


def test_views_differ_and_the_plain_one_does_not_depend_on_the_seed(tmp_path):
    one, other = (fill(make_bank(tmp_path, seed=seed)).features["train"] for seed in (0, 1))
    np.testing.assert_array_equal(one[:, 0], other[:, 0])
    for slot in (1, 2, 3):
        assert (one[:, slot] != other[:, slot]).any(1).mean() > 0.8
    assert (one[:, 2] != one[:, 3]).any()


def test_numbers_beyond_float16_are_cut(tmp_path):
    encoder = nn.Sequential(make_encoder(), Scale(1e9))
    found = fill(make_bank(tmp_path, encoder=encoder)).features["train"]
    assert np.isfinite(found).all()
    assert found.max() == 65504


class Scale(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return x * self.factor


def test_embedding_leaves_the_random_state_and_the_network_as_they_were(tmp_path):
    bank = make_bank(tmp_path)
    before, weights = torch.get_rng_state(), {k: v.clone() for k, v in bank.encoder.state_dict().items()}
    fill(bank)
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(v, weights[k]) for k, v in bank.encoder.state_dict().items())


def test_the_dataset_of_a_bank(tmp_path):
    bank = fill(make_bank(tmp_path))
    data, plain = bank.dataset(), np.asarray(bank.features["train"][:, 0], np.float64)
    np.testing.assert_allclose(data.mean, plain.mean(0), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(data.std, np.where(plain.std(0) > 0, plain.std(0), 1), rtol=1e-6)
    assert (data.slots, data.shape, data.bank) == ((1, 2), (16,), bank)
    np.testing.assert_array_equal(data.train.y, bank.source.train.y)


class OnDemand:
    """Images that are made when they are asked for; not an array."""

    def __init__(self, count, side=12):
        self.shape, self.dtype = (count, side, side, 3), np.dtype(np.uint8)
        self.ndim, self.size, self.largest = 4, count * side * side * 3, 0

    def __len__(self):
        return self.shape[0]

    def __getitem__(self, rows):
        assert isinstance(rows, np.ndarray)
        assert rows.ndim == 1
        self.largest = max(self.largest, len(rows))
        first, steps = (rows * 37 % 251).astype(np.uint8), np.arange(self.shape[1] ** 2 * 3).astype(np.uint8)
        return (first[:, None] + steps).reshape(-1, *self.shape[1:])


def test_images_may_be_anything_that_is_indexed_by_rows(tmp_path):
    source = OnDemand(20)
    array = source[np.arange(20)]
    y = np.arange(20) % 2
    one = make_bank(tmp_path, Dataset(Examples(source, y), None, ("a", "b"), MEAN, STD))
    other = make_bank(tmp_path, Dataset(Examples(array, y), None, ("a", "b"), MEAN, STD))
    assert one.folder == other.folder
    fill(one)
    np.testing.assert_allclose(one.features["train"], slow_features(other, "train"), rtol=2e-3, atol=1e-4)


# --- its key


def test_the_key_is_that_of_the_content(tmp_path):
    first = make_bank(tmp_path).folder
    dataset = make_dataset()
    relabeled = replace(dataset, train=replace(dataset.train, y=1 - dataset.train.y), mean=STD, std=MEAN)
    same = [
        make_bank(tmp_path),
        make_bank(tmp_path, dataset=relabeled),
        make_bank(tmp_path, config=replace(CONFIG, noise=0.3, head="mlp", batch_size=5)),
        make_bank(tmp_path, encoder=make_encoder().requires_grad_(False)),
    ]
    assert {bank.folder for bank in same} == {first}
    pixel = make_dataset()
    pixel.test.x[-1, -1, -1, -1] ^= 1
    others = [
        make_bank(tmp_path, dataset=pixel),
        make_bank(tmp_path, dataset=make_dataset(train=19)),
        make_bank(tmp_path, encoder=make_encoder(seed=1)),
        make_bank(tmp_path, encoder=nn.Sequential(*make_encoder()[:3], nn.AdaptiveMaxPool2d(2), nn.Flatten())),
        make_bank(tmp_path, config=replace(CONFIG, weak=2)),
        make_bank(tmp_path, config=replace(CONFIG, strong=3)),
        make_bank(tmp_path, config=replace(CONFIG, lazy=True)),
        make_bank(tmp_path, seed=1),
        make_bank(tmp_path, flip=False),
        make_bank(tmp_path, mean=(0.5, 0.4, 0.31)),
    ]
    assert len({first, *(bank.folder for bank in others)}) == 11
    # Other images of the same recipe lie beside each other.
    assert [bank.folder.parent == first.parent for bank in others] == [True, True, *[False] * 8]


def test_the_key_of_a_timm_network():
    """Size and interpolation count, the place of the weights does not."""

    def key(tmp=os.environ["VCC_INFUSE_CACHE"], **options):
        torch.manual_seed(0)
        net = Timm("test_resnet", **{"weights": "none", "input_size": 32, **options})
        net.setup((3, 12, 12))
        return make_bank(tmp, encoder=net).folder

    assert key() == key(weights="/a/file.pth")
    assert len({key(), key(input_size=48), key(interpolation="bilinear")}) == 3


def test_the_key_reads_images_in_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 12 * 12 * 3 * 10)
    source = OnDemand(1000)
    make_bank(tmp_path, Dataset(Examples(source, np.arange(1000) % 2), None, ("a", "b"), MEAN, STD))
    assert source.largest == 10


# --- continuing, sharing


def test_a_finished_bank_is_not_embedded_again(tmp_path):
    fill(make_bank(tmp_path))
    again = make_bank(tmp_path)
    assert again.missing() == 0
    fill(again, run=lambda function, jobs: [pytest.fail("embedded again") for _ in jobs])


def test_plain_views_first_leave_the_same_bank(tmp_path):
    whole = fill(make_bank(tmp_path / "whole"))
    bank = make_bank(tmp_path / "turns")
    assert bank.missing(plain=True) == 20 + 5
    fill(bank, plain=True)
    assert (bank.missing(plain=True), bank.missing(), bank.new_images()) == (0, 20 * 3, 20)
    plain = slow_features(bank, "train")[:, :1]
    np.testing.assert_allclose(bank.features["train"], plain.expand(-1, 4, -1), rtol=2e-3, atol=1e-4)
    again = make_bank(tmp_path / "turns")  # as after a kill between both turns
    assert again.missing() == 20 * 3
    fill(again)
    assert again.missing() == 0
    for part, features in whole.features.items():
        np.testing.assert_array_equal(again.features[part], features)


def test_another_run_may_embed_the_same_images_meanwhile(tmp_path):
    config = replace(CONFIG, lazy=True)
    bank = make_bank(tmp_path, config=config)
    done = []

    def overtaken(function, jobs):
        for job in jobs:
            done.append(job)
            yield function(job)
            fill(make_bank(tmp_path, config=config))  # the other one ends while this one is at its first chunk

    fill(bank, run=overtaken)
    assert len(done) <= 2  # the first chunk of each part
    assert bank.missing() == 0


SCRIPT = """
import sys, time, torch
sys.path.insert(0, {tests!r})
from tests.bank import test_bank as t
t.storage.CHUNK = 8
class Slow(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = t.make_encoder()
    def forward(self, x):
        time.sleep({pause})
        return self.net(x)
bank = t.make_bank({cache!r}, t.make_dataset(train=96), Slow())
done = []
def run(function, jobs):
    for job in jobs:
        print(job.part, job.number, flush=True)
        yield function(job)
bank.build(progress=False, run=run)
import hashlib
print("hash", hashlib.sha256(bank.features["train"].tobytes() + bank.features["test"].tobytes()).hexdigest())
"""


def start(cache, pause):
    root = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
    script = SCRIPT.format(tests=root, cache=str(cache), pause=pause)
    return subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=root)


@pytest.mark.slow
def test_a_killed_process_continues_where_it_was(tmp_path):
    first = start(tmp_path / "a", 0.05)
    begun = [first.stdout.readline().strip() for _ in range(5)]
    first.send_signal(signal.SIGKILL)
    first.wait()
    begun += first.stdout.read().split("\n")
    begun = [line for line in begun if line.startswith(("train", "test"))]
    second, whole = start(tmp_path / "a", 0), start(tmp_path / "b", 0)
    *rest, found = second.communicate()[0].splitlines()
    *every, expected = whole.communicate()[0].splitlines()
    assert found == expected
    assert len(every) == 13
    # Only the chunk that was under way is embedded twice.
    assert set(begun) | set(rest) == set(every)
    assert set(begun) & set(rest) <= {begun[-1]}
    assert 0 < len(rest) < len(every)


@pytest.mark.parametrize("world", [2, 3])
def test_processes_share_the_work(tmp_path, world):
    whole = fill(make_bank(tmp_path / "whole"))
    banks, counted = [make_bank(tmp_path / "shared") for _ in range(world)], []

    def counting(function, jobs):
        for job in jobs:
            counted.append((job.part, job.number))
            yield function(job)

    for rank, bank in enumerate(banks):
        # The later processes start when the first is done: their share must not depend on it.
        fill(bank, rank=rank, world=world, run=counting)
    assert sorted(counted) == [("test", 0), *(("train", n) for n in range(3))]
    for part in ("train", "test"):
        np.testing.assert_array_equal(banks[0].features[part], whole.features[part])


def test_processes_that_share_a_bank_forward_in_the_same_way(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MEASURED", 1)
    monkeypatch.setattr(module, "fastest_options", lambda encoder, images: ForwardOptions(5, channels_last=False))
    one, other = make_bank(tmp_path), make_bank(tmp_path)
    assert one.network.options == ForwardOptions(5, channels_last=False)
    monkeypatch.setattr(module, "fastest_options", lambda encoder, images: ForwardOptions(9))
    assert other.network.options == one.network.options
    assert json.loads((one.folder / "forward.json").read_text()) == one.network.options._asdict()


def test_the_fastest_options_are_measured():
    class Net(nn.Module):
        """Slow for every batch but those of 16 in channels_last."""

        def forward(self, x):
            good = len(x) == 16 and x.is_contiguous(memory_format=torch.channels_last)
            time.sleep(0.001 * len(x) if good else 0.004 * len(x))
            return x.flatten(1)

    found = encoder_module.fastest_options(Net(), torch.rand(32, 3, 4, 4))
    assert (found.batch_size, found.channels_last) == (16, True)
    assert encoder_module.fastest_options(Net(), torch.rand(3, 3, 4, 4)).batch_size >= 3


# --- damage


@pytest.mark.parametrize("name", ["train.npy", "test.npy", "train-marks.npy", "train-digests.npy"])
@pytest.mark.parametrize("damage", ["short", "rubbish", "empty", "other"])
def test_damaged_files_are_noticed(tmp_path, name, damage):
    path = fill(make_bank(tmp_path)).folder / name
    content = path.read_bytes()
    if damage == "other":
        np.save(path, np.zeros((2, 3, 4), np.float16))
    else:
        path.write_bytes({"short": content[:-1], "rubbish": b"x" * len(content), "empty": b""}[damage])
    with pytest.raises(UserError, match=f"{name} is damaged; remove the folder .* to make it again") as e:
        make_bank(tmp_path)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(("name", "place"), [("train.npy", -3), ("test.npy", -40), ("train-marks.npy", -8)])
def test_a_damaged_chunk_is_embedded_again(tmp_path, name, place):
    bank = fill(make_bank(tmp_path))
    whole = {part: np.array(features) for part, features in bank.features.items()}
    content = bytearray((bank.folder / name).read_bytes())
    content[place] ^= 64
    (bank.folder / name).write_bytes(content)
    with pytest.warns(UserWarning, match="1 chunks of the bank .* were damaged and are embedded again"):
        again = make_bank(tmp_path)
    assert again.missing() > 0
    fill(again)
    assert all(np.array_equal(whole[part], again.features[part]) for part in whole)
    assert make_bank(tmp_path).missing() == 0


def test_rows_that_have_lost_their_marks_are_named(tmp_path):
    """Views of a chunk are drawn together: of a few rows alone they are others, and a run on them is another run."""
    bank = fill(make_bank(tmp_path))
    whole = np.array(bank.features["train"])
    bank.stored["train"].marks.write(np.array([2, 3]), np.zeros(2))
    with pytest.warns(UserWarning, match="2 rows of the bank .* have lost their marks and are embedded again"):
        again = make_bank(tmp_path)
    np.testing.assert_array_equal(fill(again).features["train"][:, 0], whole[:, 0])


def test_a_damaged_row_of_a_lazy_bank_is_embedded_again(tmp_path):
    """Rows that are embedded have checksums of their own; the others repeat their plain view."""
    config = replace(CONFIG, lazy=True)
    bank = fill(make_bank(tmp_path, config=config))
    bank.ensure(np.array([0, 3]))
    whole = np.array(bank.features["train"])
    for row, slot in ((3, 1), (5, 1)):
        damaged = whole[row].copy()
        damaged[slot] += 1
        bank.stored["train"].file.write(np.array([row]), damaged[None])
    with pytest.warns(UserWarning, match="1 rows of the bank"):
        again = make_bank(tmp_path, config=config)
    assert np.array_equal(again.features["train"][5], whole[5])
    assert again.missing() == 1
    fill(again).ensure(np.array([0, 3]))
    assert np.array_equal(again.features["train"], whole)


def test_rows_without_marks_are_not_trusted(tmp_path):
    bank = fill(make_bank(tmp_path))
    whole = np.array(bank.features["train"])
    bank.stored["train"].file.write(np.array([3]), whole[:1])
    (bank.folder / "train-marks.npy").unlink()
    again = make_bank(tmp_path)
    assert again.missing() == 20 * 4
    assert np.array_equal(fill(again).features["train"], whole)


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="needs posix_fallocate")
def test_a_full_disk_is_noticed_before_the_work(tmp_path, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(UserError, match="MB and the disk is full; free some space, use fewer views") as e:
        make_bank(tmp_path)
    assert "\n" not in str(e.value)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"weak": 0}, "weak must be an integer of at least 1, got 0"),
        ({"strong": 1.5}, "strong must be an integer of at least 1, got 1.5"),
        ({"noise": -1.0}, "noise must be a finite number of at least 0"),
        ({"head": "tree"}, "head must be one of linear, mlp"),
        ({"batch_size": 0}, "batch_size must be an integer of at least 1"),
    ],
)
def test_options_are_checked(options, problem):
    with pytest.raises(OptionError, match=problem):
        BankConfig(**options)


# --- lazy banks


def test_a_lazy_bank_embeds_what_is_asked_for(tmp_path):
    whole, lazy = fill(make_bank(tmp_path)), make_bank(tmp_path, config=replace(CONFIG, lazy=True))
    assert lazy.missing() == 20 + 5
    fill(lazy)
    found = lazy.features["train"]
    np.testing.assert_array_equal(found[:, 0], whole.features["train"][:, 0])
    assert all((found[:, slot] == found[:, 0]).all() for slot in (1, 2, 3))
    forwarded = []
    hook = lazy.encoder.register_forward_hook(lambda net, inputs, out: forwarded.append(len(out)))
    rows = np.array([9, 3, 3, 18, 8])
    lazy.ensure(rows)
    lazy.ensure(rows[:2])
    hook.remove()
    assert sum(forwarded) == 4 * 3
    assert np.flatnonzero((found[:, 3] != found[:, 0]).any(1)).tolist() == [3, 8, 9, 18]
    np.testing.assert_allclose(found[rows], whole.features["train"][rows], rtol=2e-3, atol=1e-4)


def test_processes_share_what_is_asked_of_a_lazy_bank(tmp_path):
    banks = [fill(make_bank(tmp_path, config=replace(CONFIG, lazy=True))) for _ in range(2)]
    rows = np.arange(20)
    order, store = [], banks[1].embed
    banks[1].embed = lambda job: (order.append(job.number), store(job))[1]
    banks[0].ensure(rows[8:16], rank=0, world=2)
    banks[1].ensure(rows, rank=1, world=2)
    assert order == [2, 0]  # it starts in the middle and skips what the other process has done
    whole = fill(make_bank(tmp_path))
    np.testing.assert_array_equal(banks[0].features["train"], whole.features["train"])


@pytest.fixture(scope="module")
def photos():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (100, 16, 16, 3), dtype=np.uint8)
    y = np.arange(100) % 2
    x[y == 1] //= 2
    dataset = Dataset(Examples(x, y), Examples(x[:10], y[:10]), ("a", "b"), MEAN, STD)
    return SSLData(dataset, balanced(y, 8, 2, 0))


OPTIONS = dict(steps=40, batch_size=8, unlabeled_ratio=2, lr=0.01, eval_every=40, progress=False, device="cpu")


def test_only_kept_and_labeled_rows_get_further_views(photos, tmp_path, monkeypatch):
    net = Timm("test_resnet", weights="none", input_size=16)
    data = embed_data(photos, net, BankConfig(1, 1, lazy=True), cache=str(tmp_path), progress=False, device="cpu")
    x = data.dataset.train.x
    kept = set(data.split.labeled.tolist())
    trainer = Trainer(Identity(), FixMatch(), selector=INFUSE(keep=0.25), **OPTIONS)
    trainer.prepare(data)
    assert set(embedded(x)) == kept
    restrict = type(trainer.batches_).restrict

    def watched(batches, coreset, start=0):
        kept.update([] if coreset is None else data.split.pool[coreset.ids.numpy()].tolist())
        restrict(batches, coreset, start)

    monkeypatch.setattr(type(trainer.batches_), "restrict", watched)
    trainer.fit(data)
    assert set(embedded(x)) == kept
    assert 25 <= len(kept) < 80


def embedded(x):
    marks = np.load(os.path.join(os.path.dirname(x.filename), "train-marks.npy"))
    rows = storage.written_slots(marks) == 3
    assert ((x[:, 2] != x[:, 0]).any(1) <= rows).all()
    return np.flatnonzero(rows).tolist()


def test_a_lazy_bank_without_a_selector_is_whole_at_the_first_step(photos, tmp_path):
    net = Timm("test_resnet", weights="none", input_size=16)
    banks = [
        embed_data(photos, net, BankConfig(1, 1, lazy=lazy), cache=str(tmp_path), progress=False, device="cpu")
        for lazy in (True, False)
    ]
    errors = [Trainer(Identity(), FixMatch(), **OPTIONS).fit(bank)["nll"] for bank in banks]
    np.testing.assert_array_equal(banks[0].dataset.train.x, banks[1].dataset.train.x)
    assert errors[0] == errors[1]


# --- a run on a bank


def test_a_run_on_a_bank_takes_images(photos, tmp_path):
    net = Timm("test_resnet", weights="none", input_size=16)
    data = embed_data(photos, net, BankConfig(1, 1), cache=str(tmp_path), progress=False, device="cpu")
    trainer = Trainer(Identity(), FixMatch(), out=str(tmp_path / "run"), **OPTIONS)
    trainer.fit(data)
    predictor = Predictor.load(str(tmp_path / "run"))
    assert predictor.shape == (16, 16, 3)
    rows = trainer.state_.row_predictor().predict(data.dataset.test.x).probs
    torch.testing.assert_close(predictor.predict(photos.dataset.test.x).probs, rows, rtol=0.02, atol=2e-3)


# --- memory


MEMORY = """
import sys, numpy as np, torch
sys.path.insert(0, {root!r})
from tests.bank import test_bank as t
class Mean(torch.nn.Module):
    def forward(self, x):
        return x.mean((2, 3))
def peak():
    # Not ru_maxrss, which a child inherits from its parent.
    return int(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0]) / 1024
count = int(sys.argv[1])
y = np.arange(count) % 2
bank = t.Bank(t.Dataset(t.Examples(t.OnDemand(count, 24), y), None, ("a", "b"), t.MEAN, t.STD), Mean(),
              t.ImageViews(t.MEAN, t.STD), t.BankConfig(1, 1, batch_size=4096), cache=sys.argv[2])
bank.build(progress=False)
assert bank.missing() == 0
print(peak(), y.nbytes / 2**20)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="peak memory is counted in other units elsewhere")
@pytest.mark.slow
def test_memory_does_not_grow_with_the_images(tmp_path):
    root = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
    script = MEMORY.format(root=root).replace("class Mean", "t.storage.CHUNK = 4096\nclass Mean")
    peaks = []
    for count in (10_000, 150_000):
        words = [sys.executable, "-c", script, str(count), str(tmp_path / str(count))]
        peak, labels = map(
            float, subprocess.run(words, check=True, capture_output=True, text=True, cwd=root).stdout.split()
        )
        peaks.append(peak - labels)
    # All images have 247 MB; the allocator alone differs by up to 30 between two runs.
    assert peaks[1] - peaks[0] < 120, peaks


def test_embed_data_is_its_three_steps(tmp_path):
    data = SSLData(make_dataset(), balanced(make_dataset().train.y, 4, 2, 0))
    network = Timm("test_resnet", weights="none")
    made, source = embedding.make_encoder(network, data.dataset.shape)
    assert source is None
    assert not hasattr(network, "net"), "the user's network stays as it was"
    assert made.input_size == 160, "as timm's test_resnet was trained"
    assert not any(weight.requires_grad for weight in made.parameters())
    bank = embedding.open_bank(data, made, CONFIG, cache=str(tmp_path / "steps"), device="cpu")
    bank.embed_all(data.split.labeled, progress=False)
    assert bank.missing() == 0
    assert bank.seconds > 0
    whole = embed_data(data, network, CONFIG, cache=str(tmp_path / "whole"), device="cpu", progress=False)
    np.testing.assert_array_equal(bank.dataset().train.x, whole.dataset.train.x)
    assert bank.folder.name == whole.dataset.bank.folder.name
    with pytest.raises(UserError, match="a bank needs images"):
        embedding.make_encoder(network, (7,))
