"""Sharded banks against a slow loop over images, and against death, damage and changed input."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image, ImageOps
from tests.helpers.photo_files import draw, name_of, write_tar

from vcc_infuse import Shards, Timm, embed_shards
from vcc_infuse.bank import sharding as module
from vcc_infuse.bank.shards import only_writer
from vcc_infuse.errors import OptionError, UserError
from vcc_infuse.utils.io import json_bytes

SIDE = 16
IMAGES = 12


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "w.pth"
    torch.manual_seed(0)
    torch.save(timm.create_model("test_resnet", num_classes=0).state_dict(), path)
    return str(path)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pool")
    return draw(folder, IMAGES)


@pytest.fixture
def tars(tmp_path, photos):
    """Four tars of three photos."""
    for number in range(4):
        write_tar(tmp_path / f"part-{number}.tar", photos[3 * number : 3 * number + 3])
    return str(tmp_path / "part-*.tar")


@pytest.fixture
def embed(weights, tmp_path):
    def run(data, out="bank", **options):
        network = Timm("test_resnet", weights=options.pop("weights", weights), input_size=SIDE)
        fixed = {"device": "cpu", "engine": "torch", "progress": False}
        return embed_shards(str(data), tmp_path / out, network, **{**fixed, **options})

    return run


@pytest.fixture
def calls(monkeypatch):
    """Which pieces are embedded, in their order."""
    seen = []
    real = module.embed_piece

    def counted(work, number, piece):
        seen.append(Path(piece.url).name)
        return real(work, number, piece)

    monkeypatch.setattr(module, "embed_piece", counted)
    return seen


@torch.no_grad()
def slow_features(photos, weights):
    """One image at a time: PIL, the normalization by hand, the network of timm."""
    network = timm.create_model("test_resnet", num_classes=0).eval()
    network.load_state_dict(torch.load(weights, weights_only=True))
    mean, std = (np.array(network.pretrained_cfg[name], np.float32) for name in ("mean", "std"))
    rows = {}
    for photo in photos:
        pixels = np.asarray(ImageOps.fit(Image.open(photo), (SIDE, SIDE), Image.Resampling.BILINEAR), np.float32)
        x = torch.from_numpy(((pixels / 255 - mean) / std).transpose(2, 0, 1)[None].copy())
        rows[name_of(photo)] = network(x)[0].numpy()
    return rows


def plain(shards):
    """The plain view of every row by its name, without the tar that it is in."""
    rows = shards.rows(np.arange(len(shards)))[:, 0]
    return {"/".join(name.split("/")[-2:]): row for name, row in zip(shards.names, rows, strict=True)}


def close(rows, expected):
    assert rows.keys() == expected.keys()
    for name in expected:
        np.testing.assert_allclose(rows[name], expected[name], rtol=2e-3, atol=2e-3)
    return True


# --- what it holds


def test_features_are_those_of_a_slow_loop(embed, photos, weights, tars):
    expected = slow_features(photos, weights)
    folder = photos[0].parents[1]
    assert close(plain(embed(tars)), expected)
    assert close(plain(embed(folder, "folder", images=5)), expected)


def test_shards_are_mapped_and_every_row_has_its_name(embed, photos, tars):
    shards = embed(tars)
    assert [part.file for part in shards.parts] == [f"shard-0000{number}.safetensors" for number in range(4)]
    assert [part.start for part in shards.parts] == [0, 3, 6, 9]
    assert all(isinstance(shards.features(number), np.memmap) for number in range(4))
    assert list(shards.names) == [f"part-{i // 3}.tar/{name_of(photo)}" for i, photo in enumerate(photos)]
    assert shards.names[-1] == shards.names[11]
    assert shards.names[3:5] == [shards.name(3), shards.name(4)]
    with pytest.raises(IndexError):
        shards.names[12]
    numbers = np.array([7, 0, 11])
    whole = np.concatenate([block for _, block in shards.blocks(2)])
    np.testing.assert_array_equal(shards.rows(numbers), whole[numbers])
    assert shards.sample(None).tolist() == list(range(12))
    drawn = shards.sample(5, seed=1).tolist()
    assert drawn == sorted(set(drawn))
    assert len(drawn) == 5


def test_views_follow_from_the_seed(embed, photos, tars):
    one, again, other = (
        embed(tars, name, weak=1, strong=2, seed=seed) for name, seed in (("a", 0), ("b", 0), ("c", 1))
    )
    rows = [bank.rows(np.arange(12)) for bank in (one, again, other)]
    assert rows[0].shape[:2] == (12, 4)
    np.testing.assert_array_equal(rows[0], rows[1])
    np.testing.assert_array_equal(rows[0][:, 0], rows[2][:, 0])
    assert (rows[0][:, 2] != rows[2][:, 2]).any()
    assert (rows[0][:, 2] != rows[0][:, 3]).any()


def test_unreadable_images_are_counted(embed, tmp_path, capsys):
    photos = draw(tmp_path / "x")
    photos[4].write_bytes(b"no image")
    shards = embed(tmp_path / "x" / "photos", images=4)
    assert (len(shards), [part.skipped for part in shards.parts]) == (11, [0, 1, 0])
    assert "skipped a/08.png: not an image file" in capsys.readouterr().err
    for photo in photos:
        photo.write_bytes(b"no image")
    with pytest.raises(UserError, match="none of the images of"):
        embed(tmp_path / "x" / "photos", "nothing")


# --- again


def test_a_second_start_skips_what_is_finished(embed, tars, calls):
    embed(tars)
    assert len(calls) == 4
    embed(tars)
    assert len(calls) == 4


def test_a_stopped_run_continues(embed, tars, calls, monkeypatch, tmp_path, photos, weights):
    counted = module.embed_piece

    def dying(work, number, piece):
        if number == 2:
            raise KeyboardInterrupt
        return counted(work, number, piece)

    monkeypatch.setattr(module, "embed_piece", dying)
    with pytest.raises(KeyboardInterrupt):
        embed(tars)
    with pytest.raises(UserError, match="is not complete; run the command that embeds it again"):
        Shards(tmp_path / "bank")
    monkeypatch.setattr(module, "embed_piece", counted)
    shards = embed(tars)
    assert calls == [f"part-{number}.tar" for number in range(4)]
    assert close(plain(shards), slow_features(photos, weights))


def seal(path, stored):
    """Write an index as somebody would who changes its checksum, too."""
    stored.pop("sha256")
    path.write_bytes(json_bytes({**stored, "sha256": hashlib.sha256(json_bytes(stored)).hexdigest()}))


@pytest.mark.parametrize("harm", ["cut", "flip", "gone", "never listed"])
def test_a_damaged_shard_is_noticed_and_made_again(embed, tars, calls, tmp_path, harm, capsys):
    before = embed(tars).rows(np.arange(12))
    path = tmp_path / "bank" / "shard-00001.safetensors"
    content = bytearray(path.read_bytes())
    if harm == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif harm == "flip":
        content[-200] ^= 1
        path.write_bytes(content)
    elif harm == "gone":
        path.unlink()
    else:  # a process was killed between the file and the index, and another left half a file
        index = tmp_path / "bank" / "index.json"
        stored = json.loads(index.read_text())
        stored["shards"].pop(1)
        seal(index, {**stored, "complete": False})
        (tmp_path / "bank" / ".shard-00001.safetensors.123.tmp").write_bytes(content[:50])
    if harm != "never listed":
        with pytest.raises(UserError, match="shard-00001.safetensors is not as it was written; run"):
            Shards(tmp_path / "bank").rows(np.arange(12))
    again = embed(tars)
    assert calls[4:] == ["part-1.tar"]
    np.testing.assert_array_equal(again.rows(np.arange(12)), before)


def test_new_files_become_new_shards_and_old_ones_stay(embed, tars, calls, tmp_path, photos):
    before = embed(tars).rows(np.arange(12))
    write_tar(tmp_path / "part-00.tar", photos[:2])  # the first by its name
    after = embed(tars)
    assert calls[4:] == ["part-00.tar"]
    np.testing.assert_array_equal(after.rows(np.arange(12)), before)
    assert after.names[12].startswith("part-00.tar/")
    (tmp_path / "part-0.tar").rename(tmp_path / "away")
    fewer = embed(tars)
    assert (len(fewer), len(calls)) == (11, 5)
    np.testing.assert_array_equal(fewer.rows(np.arange(9)), before[3:])
    (tmp_path / "away").rename(tmp_path / "part-0.tar")
    np.testing.assert_array_equal(embed(tars).rows(np.arange(12)), before)
    assert len(calls) == 5


def test_another_recipe_is_refused(embed, tars, tmp_path):
    embed(tars)
    with pytest.raises(UserError, match=r"was embedded otherwise \(strong was 0, is 1\); give another folder"):
        embed(tars, strong=1)
    with pytest.raises(UserError, match=r"was embedded otherwise \(network was "):
        embed(tars, weights="none")


def test_two_writers(embed, tars, tmp_path):
    with only_writer(tmp_path / "bank"), pytest.raises(UserError, match="is being written by another process"):
        embed(tars)


@pytest.mark.parametrize("text", ["{", "[]", '{"format": 1}', '{"format": 2}'])
def test_a_malformed_index_costs_one_line(embed, tars, tmp_path, text):
    embed(tars)
    (tmp_path / "bank" / "index.json").write_text(text)
    with pytest.raises(UserError, match="index.json"):
        Shards(tmp_path / "bank")


@pytest.mark.parametrize("change", ["start 3 4", "rows 12 11", "seed 0 1"])
def test_an_index_with_another_digit_is_refused(embed, tars, tmp_path, change):
    embed(tars)
    index = tmp_path / "bank" / "index.json"
    before = index.read_text()
    name, old, new = change.split()
    index.write_text(before.replace(f'"{name}": {old}', f'"{name}": {new}', 1))
    assert index.read_text() != before
    with pytest.raises(UserError, match="index.json is damaged: its checksum is another one"):
        Shards(tmp_path / "bank")


def test_an_index_names_no_file_elsewhere(embed, tars, tmp_path):
    embed(tars)
    index = tmp_path / "bank" / "index.json"
    stored = json.loads(index.read_text())
    stored["shards"][1]["file"] = "../shard-00001.safetensors"
    seal(index, stored)
    with pytest.raises(UserError, match="index.json is damaged: a shard has a name that none can have"):
        Shards(tmp_path / "bank")


def test_mistakes(embed, tars, tmp_path):
    with pytest.raises(UserError, match="has no index.json"):
        Shards(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="is a file; give a folder for the shards"):
        embed(tars, "file")
    for option in ({"backend": "moon"}, {"mode": "sepia"}, {"images": 0}, {"workers": 0}, {"size": 0}, {"strong": -1}):
        with pytest.raises(OptionError, match=next(iter(option))):
            embed(tars, **option)


# --- faults


def failing(monkeypatch, times, fault):
    """Let the second piece fail so often; returns how often it was tried."""
    real = module.embed_piece
    tries = []

    def embed_piece(work, number, piece):
        if number == 1:
            tries.append(number)
            if len(tries) <= times:
                raise fault
        return real(work, number, piece)

    monkeypatch.setattr(module, "embed_piece", embed_piece)
    return tries


def test_what_may_pass_is_tried_again(embed, tars, monkeypatch):
    tries = failing(monkeypatch, 2, OSError("connection lost"))
    assert len(embed(tars)) == 12
    assert len(tries) == 3


def test_what_does_not_pass_is_named_and_the_rest_is_kept(embed, tars, monkeypatch, calls):
    tries = failing(monkeypatch, 3, OSError("connection lost"))
    with pytest.raises(UserError, match=r"1 of 4 shards cannot be made: .*part-1.tar \(OSError: connection lost"):
        embed(tars)
    assert (len(tries), len(calls)) == (3, 3)
    assert len(embed(tars)) == 12
    assert len(calls) == 4


def test_a_damaged_file_is_not_tried_again(embed, tars, tmp_path, calls):
    path = tmp_path / "part-2.tar"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(UserError, match=r"1 of 4 shards cannot be made: file://.*part-2.tar is damaged"):
        embed(tars)
    assert len(calls) == 4


def test_our_own_faults_are_not_hidden(embed, tars, monkeypatch):
    tries = failing(monkeypatch, 1, TypeError("a fault of the program"))
    with pytest.raises(TypeError, match="a fault of the program"):
        embed(tars)
    assert len(tries) == 1


# --- several processes, one of which is killed


def children(marks):
    """Processes below this one whose command line holds one of the marks."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            if any(mark in command for mark in marks) and below_us(int(entry.name)):
                found.append(int(entry.name))
        except OSError:  # it has ended meanwhile
            continue
    return found


def below_us(pid):
    while pid > 1:
        if pid == os.getpid():
            return True
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return False


class Killer(threading.Thread):
    """Kills one worker that is at work, a moment after it has begun."""

    def __init__(self, *marks):
        super().__init__(daemon=True)
        self.marks = marks
        self.killed = None

    def run(self):
        while self.killed is None:
            for pid in children(self.marks):
                time.sleep(0.2)
                os.kill(pid, signal.SIGKILL)
                self.killed = pid
                return
            time.sleep(0.01)


@pytest.fixture
def many(tmp_path, photos):
    """Six tars that take a second or so each."""
    for number in range(6):
        write_tar(tmp_path / f"many-{number}.tar", photos * 60)
    return str(tmp_path / "many-*.tar")


@pytest.mark.slow
def test_processes_of_which_one_is_killed(embed, many, tmp_path):
    expected = embed(many, "here")
    killer = Killer("spawn_main")
    killer.start()
    shards = embed(many, "bank", workers=2)
    killer.join()
    assert killer.killed
    assert list(shards.names) == list(expected.names)
    np.testing.assert_array_equal(shards.rows(np.arange(len(shards))), expected.rows(np.arange(len(expected))))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_workers_end_with_a_process_that_is_killed(many, weights, tmp_path):
    words = ["--data", many, "--shards", str(tmp_path / "bank"), "--workers", "2", "--device", "cpu"]
    network = ["--engine", "torch", "--model.name", "test_resnet", "--model.weights", weights]
    process = subprocess.Popen([sys.executable, "-m", "vcc_infuse", "embed", *words, *network])
    workers = []
    while len(workers) < 2 and process.poll() is None:
        workers = children(["spawn_main"])
    time.sleep(3)
    process.kill()
    process.wait()
    end = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in workers) and time.monotonic() < end:
        time.sleep(0.1)
    assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]
    assert len(workers) == 2


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="needs ray")
def test_a_ray_cluster_of_which_one_worker_is_killed(embed, many, tmp_path):
    import ray

    expected = embed(many, "here")
    killer = Killer("ray::_in_worker")
    killer.start()
    try:
        shards = embed(many, "bank", backend="ray", workers=2)
        killer.join()
        assert killer.killed
        assert list(shards.names) == list(expected.names)
        np.testing.assert_array_equal(shards.rows(np.arange(len(shards))), expected.rows(np.arange(len(expected))))
        path = tmp_path / "many-3.tar"
        path.write_bytes(path.read_bytes()[:100_000])  # a fault that comes back through Ray
        with pytest.raises(UserError, match=r"1 of 1 shards cannot be made: file://\S*many-3.tar is damaged \([^\n]*$"):
            embed(many, "bank", backend="ray", workers=2)
    finally:
        ray.shutdown()


# --- an S3-compatible server


@pytest.mark.slow
@pytest.mark.skipif(find_spec("moto") is None or find_spec("s3fs") is None, reason="needs moto and s3fs")
def test_images_in_s3(embed, tars, tmp_path, photos, weights, monkeypatch):
    import s3fs
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "none")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    s3fs.S3FileSystem.clear_instance_cache()
    try:
        fs = s3fs.S3FileSystem()
        fs.mkdir("bucket")
        fs.put(str(photos[0].parents[1]), "bucket/photos", recursive=True)
        for number in range(4):
            fs.put(str(tmp_path / f"part-{number}.tar"), f"bucket/part-{number}.tar")
        expected = slow_features(photos, weights)
        assert close(plain(embed("s3://bucket/photos", "a", images=5)), expected)
        assert close(plain(embed("s3://bucket/part-*.tar", "b")), expected)
        assert close(plain(embed("s3://bucket/part-*.tar", "c", workers=2)), expected)
        with pytest.raises(UserError, match="must be a path, pattern or address|no such file"):
            embed("s3://nowhere/photos", "d")
        with pytest.raises(UserError, match="must hold images, or files of many"):
            embed("s3://bucket/other-*.tar", "e")
    finally:
        s3fs.S3FileSystem.clear_instance_cache()
        server.stop()
