"""The routes, on images whose color says their class."""

import errno
import os
import shutil
import time

import numpy as np
import pytest
from PIL import Image

from tests.label.fakes import Idle, Inline, act, draw, open_server, teach, truth
from vcc_infuse.errors import UserError
from vcc_infuse.label import PoolSource
from vcc_infuse.label.bounds import Batch, bulk_bound, pooled_bound
from vcc_infuse.label.state import GridBatch


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return draw(tmp_path_factory.mktemp("photos") / "in", 150)


@pytest.fixture
def opened(photos, tmp_path):
    server, client = open_server(photos, tmp_path / "out")
    yield server, client
    server.close()


def test_images_are_shown_and_labeled_before_anything_is_embedded(photos, tmp_path):
    server, client = open_server(photos, tmp_path / "out", background=Idle())
    state = client.get("/api/state").json()
    assert (state["images"], state["embedded"], state["phase"]) == (150, 0, "embedding")
    items = client.get("/api/next?count=5").json()["items"]
    assert len({item["id"] for item in items}) == 5
    thumbnail = client.get(f"/thumb/{items[0]['id']}")
    assert thumbnail.headers["content-type"] == "image/webp"
    assert "immutable" in thumbnail.headers["cache-control"]
    assert client.get(f"/image/{items[0]['id']}").headers["content-type"] == "image/jpeg"
    act(client, "new_class", name="red", key="1")
    state = act(client, "label", image=items[0]["id"], **{"class": 0}, audit=False, seconds=3)
    assert (state["labeled"], state["minutes"], state["undo"]) == (1, 0.05, 2)
    assert state["classes"] == [{"id": 0, "name": "red", "key": "1", "labels": 1, "confirmed": 0, "suggested": 0}]
    server.close()


def test_the_model_learns_and_suggests(opened):
    server, client = opened
    numbers = teach(server, client, 40)
    state = client.get("/api/state").json()
    assert state["phase"] == "ready"
    assert state["labeled"] == 40 == state["model"]["labels"] + state["audited"]
    assert state["error"]["n"] == state["audited"] >= 3
    assert state["error"]["low"] <= state["error"]["value"] == 0 < state["error"]["high"]
    items = client.get("/api/next?count=40").json()["items"]
    suggested = [item for item in items if not item["audit"]]
    assert all(item["suggestion"]["class"] == numbers[truth(server, item["id"])] for item in suggested)
    audits = [item for item in items if item["audit"]]
    assert len(audits) in (7, 8, 9)
    assert all(a["suggestion"] is None and not a["alternatives"] and a["unknown_p"] is None for a in audits)
    held = ",".join(str(item["id"]) for item in items)
    more = client.get(f"/api/next?count=40&skip={held}").json()["items"]
    assert not {item["id"] for item in more} & {item["id"] for item in items}


def test_every_image_is_offered_once_and_then_no_more(opened):
    server, client = opened
    server.background.busy = True
    seen = set()
    act(client, "new_class", name="all")
    while items := client.get("/api/next?count=50").json()["items"]:
        for item in items:
            assert item["id"] not in seen
            seen.add(item["id"])
            act(client, "label", image=item["id"], **{"class": 0}, audit=item["audit"])
    assert len(seen) == 150


def test_a_grid_confirms_a_batch_once_the_bound_allows_it(opened):
    server, client = opened
    numbers = teach(server, client, 24)
    cls = numbers["red"]
    grid = client.get(f"/api/grid?class={cls}&count=20&purpose=confirm").json()
    assert [truth(server, tile["id"]) for tile in grid["tiles"]] == ["red"] * 20
    confidence = [tile["confidence"] for tile in grid["tiles"]]
    assert confidence == sorted(confidence, reverse=True)
    size = len(server.session.grids.members(grid["batch"]))
    looks = 0
    while True:
        looks += 1
        tiles = [{"id": tile["id"], "right": True, "class": None} for tile in grid["tiles"]]
        state = act(client, "grid", **{"class": cls}, batch=grid["batch"], tiles=tiles, seconds=5)
        looked = min(20 * looks, size)
        expected = bulk_bound(Batch(size, looked, 0, looks))
        if expected["at_most"] <= 0.05:
            break
        assert state["bound"] is None
        assert state["classes"][list(numbers).index("red")]["confirmed"] == looked
        following = client.get(f"/api/grid?class={cls}&count=20&purpose=confirm").json()
        assert following["batch"] == grid["batch"]
        assert following["bound"] == expected
        assert not {tile["id"] for tile in following["tiles"]} & {tile["id"] for tile in grid["tiles"]}
        grid = following
    assert state["bound"] == expected
    assert state["classes"][list(numbers).index("red")]["confirmed"] == size
    reserved = set(server.session.reserve.tolist())
    confirmed = {item["id"] for item in client.get(f"/api/class/{cls}?count=200").json()["items"]}
    assert not any(server.session.state.source[i] == 2 for i in confirmed & reserved)


def test_a_wrong_tile_is_corrected_and_not_offered_for_the_class_again(opened):
    server, client = opened
    numbers = teach(server, client, 24)
    grid = client.get(f"/api/grid?class={numbers['red']}&count=10").json()
    first, second, *rest = [tile["id"] for tile in grid["tiles"]]
    tiles = [{"id": first, "right": False, "class": numbers["blue"]}, {"id": second, "right": False, "class": None}]
    tiles += [{"id": image, "right": True, "class": None} for image in rest]
    act(client, "grid", **{"class": numbers["red"]}, batch=grid["batch"], tiles=tiles)
    state = server.session.state
    assert (state.label[first], state.label[second], state.label[rest[0]]) == (numbers["blue"], -1, numbers["red"])
    item = server.session._item(second, "")
    assert item["suggestion"]["class"] != numbers["red"]
    for _ in range(4):
        again = client.get(f"/api/grid?class={numbers['red']}&count=50").json()
        assert second not in [tile["id"] for tile in again["tiles"]]
    state = act(client, "undo")
    assert server.session.state.label[rest[0]] == -1


def test_a_click_that_is_repeated_is_done_once(opened):
    _, client = opened
    body = {"action": "new_class", "name": "red", "client": "a-b-c", "seconds": 4}
    first = client.post("/api/act", json=body).json()
    assert client.post("/api/act", json=body).json() == first
    assert (first["version"], first["state"]["minutes"]) == (1, 0.07)


def test_undo_brings_the_image_back(opened):
    server, client = opened
    act(client, "new_class", name="red")
    shown = client.get("/api/next?count=1").json()["items"][0]["id"]
    act(client, "skip", image=shown)
    assert client.post("/api/act", json={"action": "undo"}).json()["again"]["id"] == shown
    audit = int(server.session.reserve[0])
    act(client, "label", image=audit, **{"class": 0}, audit=True)
    again = client.post("/api/act", json={"action": "undo"}).json()["again"]
    assert (again["id"], again["audit"], again["suggestion"]) == (audit, True, None)
    assert client.post("/api/act", json={"action": "undo"}).json()["again"] is None  # the class


def test_a_restart_leads_to_the_same_state_and_undo_goes_on(photos, tmp_path):
    server, client = open_server(photos, tmp_path / "out")
    teach(server, client, 10)
    act(client, "undo")
    before = server.session.state
    server.close()
    server, client = open_server(photos, tmp_path / "out")
    after = server.session.state
    assert np.array_equal(before.label, after.label)
    assert (before.classes, before.version, before.seconds) == (after.classes, after.version, after.seconds)
    assert client.post("/api/act", json={"action": "redo"}).status_code == 200
    for _ in range(after.undo_depth):
        act(client, "undo")
    assert (server.session.state.label < 0).all()
    server.close()


def test_images_that_came_and_went_do_not_shift_labels(tmp_path):
    photos = draw(tmp_path / "in", 9)
    server, client = open_server(photos, tmp_path / "out")
    act(client, "new_class", name="red")
    for image in (0, 3, 6):
        act(client, "label", image=image, **{"class": 0})
    server.close()
    (photos / "0000-red.png").unlink()
    shutil.copy(photos / "0001-green.png", photos / "0002-a-green.png")
    server, client = open_server(photos, tmp_path / "out")
    labeled = np.flatnonzero(server.session.state.label == 0)
    assert [server.session.pool.names[image] for image in labeled] == ["0003-red.png", "0006-red.png"]
    act(client, "undo")
    assert [server.session.pool.names[i] for i in np.flatnonzero(server.session.state.label == 0)] == ["0003-red.png"]
    server.close()


def test_a_full_disk_is_said_and_nothing_is_half_done(opened, monkeypatch):
    server, client = opened
    journal = server.session.journal.path.read_bytes()

    def no_space(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_space)
        response = client.post("/api/act", json={"action": "new_class", "name": "red", "client": "x"})
    assert response.status_code == 507
    assert response.json()["error"].startswith("the disk is full: nothing was changed")
    assert server.session.journal.path.read_bytes() == journal
    assert client.get("/api/state").json()["version"] == 0
    assert client.post("/api/act", json={"action": "new_class", "name": "red", "client": "x"}).json()["version"] == 1


def test_cleaning_finds_a_wrong_label_a_foreign_image_and_copies(tmp_path):
    photos = draw(tmp_path / "in", 60)
    for number in range(4):
        pixels = np.random.default_rng(number).integers(0, 2, (12, 10, 1), np.uint8) * 255
        Image.fromarray(np.repeat(pixels, 3, 2)).save(photos / f"foreign{number}-x.png")
    Image.open(photos / "0004-green.png").resize((20, 24)).save(photos / "copy-green.png")
    server, client = open_server(photos, tmp_path / "out")
    for name in ("red", "green"):
        act(client, "new_class", name=name)
    server.background.busy = True
    for image in range(50):
        if image % 3 < 2:
            act(client, "label", image=image, **{"class": image % 3})
    server.background.busy = False
    act(client, "label", image=0, **{"class": 1})
    doubtful = client.get("/api/clean?kind=doubtful").json()["items"]
    assert [(item["id"], item["class"], item["suggestion"]["class"]) for item in doubtful] == [(0, 1, 0)]
    names = server.session.pool.names
    unknown = [names[item["id"]] for item in client.get("/api/clean?kind=unknown").json()["items"]]
    reserved = {names[image] for image in server.session.reserve}
    assert {f"foreign{n}-x.png" for n in range(4)} - reserved <= set(unknown)
    groups = {}
    for item in client.get("/api/clean?kind=duplicates&count=200").json()["items"]:
        groups.setdefault(item["group"], set()).add(names[item["id"]])
    assert any({"0004-green.png", "copy-green.png"} <= group for group in groups.values())
    assert client.get("/api/clean?kind=x").status_code == 400
    server.close()


def test_unreadable_images_are_left_out_and_said(tmp_path):
    photos = draw(tmp_path / "in", 9)
    (photos / "broken.png").write_bytes(b"no image")
    server, client = open_server(photos, tmp_path / "out")
    state = client.get("/api/state").json()
    assert (state["phase"], state["message"]) == ("ready", "1 images cannot be read and are left out")
    offered = [server.session.pool.names[i["id"]] for i in client.get("/api/next?count=20").json()["items"]]
    assert len(offered) == 9
    assert "broken.png" not in offered
    server.close()


def test_events_carry_the_state(opened):
    server, _ = opened

    class Request:
        calls = 0

        async def is_disconnected(self):
            self.calls += 1
            return self.calls > 2

    async def listen():
        from vcc_infuse.label.server import Routes

        return [text async for text in Routes(server.session, server.keys, None)._changes(Request())]

    import anyio

    texts = anyio.run(listen)
    assert len(texts) == 1  # nothing has changed since the first
    assert texts[0].startswith("event: state\ndata: {")


@pytest.mark.parametrize("out", ["in", "in/labels"])
def test_nothing_is_written_among_the_photos(photos, out):
    with pytest.raises(UserError, match="out must not be inside of the photos"):
        open_server(photos, photos.parent / out)


def test_a_second_server_on_the_folder_is_refused(opened, photos):
    server, _ = opened
    with pytest.raises(UserError, match="in use by another server"):
        open_server(photos, server.out)


def test_first_images_of_many_photos_come_at_once(tmp_path):
    """Names are listed, nothing is decoded: 10,000 files on a slow machine within a small part of 15 seconds."""
    photos = draw(tmp_path / "in", 1)
    source = next(photos.iterdir())
    for number in range(10_000):
        os.link(source, photos / f"x{number:05d}.png")
    began = time.process_time()
    server, client = open_server(photos, tmp_path / "out", background=Idle())
    item = client.get("/api/next?count=1").json()["items"][0]
    assert client.get(f"/thumb/{item['id']}").status_code == 200
    assert time.process_time() - began < 4
    server.close()


def test_embedding_goes_on_where_it_was_stopped(photos, tmp_path):
    class Stops(Inline):
        def start(self, on_progress, on_answer):
            count = 0

            def stopping(progress):
                nonlocal count
                on_progress(progress)
                count += 1
                if count == 3:
                    raise KeyboardInterrupt

            with pytest.raises(KeyboardInterrupt):
                super().start(stopping, on_answer)

    source = PoolSource(str(photos))
    server, _ = open_server(photos, tmp_path / "out", background=Stops(source, tmp_path / "out"))
    assert server.session.embedded == 64
    server.close()
    with open(tmp_path / "out" / "features.bin", "ab") as file:
        file.write(b"cut short")
    server, client = open_server(photos, tmp_path / "out")
    assert client.get("/api/state").json()["embedded"] == 150
    rows = server.background.learner.rows
    assert sorted(rows.images.tolist()) == list(range(150))
    pixels, _ = server.session.pool.decoded(int(rows.images[0]), 8)
    assert np.allclose(rows.features[0], pixels.reshape(-1)[::5].astype(np.float16) / 64)
    server.close()


def test_the_promise_shown_counts_batches_that_were_given_up(opened):
    """Promising on the batches that came out well alone would be choosing by the outcome."""
    session = opened[0].session
    looked = frozenset(range(60))
    session.state.batches = {1: GridBatch(0, frozenset(range(70)), looked, looks=1, promised=True)}
    alone = session.bound()
    assert alone == bulk_bound(Batch(70, 60, 0))
    session.state.batches[2] = GridBatch(0, frozenset(range(70, 140)), frozenset(range(70, 130)), looked - looked, 1)
    session.state.batches[3] = GridBatch(1, frozenset(range(140)), looked, frozenset(range(20)), 1)
    both = session.bound()
    expected = [Batch(70, 60, 0, 1, True), Batch(70, 60, 0, 1, False), Batch(140, 60, 20, 1, False)]
    assert both == pooled_bound(expected)
    assert (both["labels"], both["wrong"]) == (70, 20)
    assert session.bound(1) is None


def test_a_merged_class_is_no_longer_suggested_and_comes_back(opened):
    """What is kept of an answer from click to click must follow the classes."""
    server, client = opened
    numbers = teach(server, client, 24)
    before = server.session.guess().copy()
    assert (before == numbers["green"]).any()
    server.background.busy = True
    act(client, "merge", **{"class": numbers["green"]}, into=numbers["red"])
    assert not (server.session.guess() == numbers["green"]).any()
    assert not any(item["name"] == "green" for item in client.get("/api/state").json()["classes"])
    act(client, "undo")
    np.testing.assert_array_equal(server.session.guess(), before)


def test_only_images_that_were_drawn_for_the_audit_measure_the_error(opened):
    server, client = opened
    act(client, "new_class", name="red")
    drawn = int(server.session.reserve[0])
    other = next(image for image in range(len(server.session.pool)) if not server.session.reserved[image])
    for image in (drawn, other):
        act(client, "label", image=image, **{"class": 0}, audit=True)
    assert np.flatnonzero(server.session.state.audit).tolist() == [drawn]
