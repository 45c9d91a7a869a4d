"""What a session leaves behind, read by those whom it is for."""

import csv
import json
import os

import numpy as np
import pytest
import torch

from tests.label.fakes import Idle, Inline, act, draw, open_server, teach, truth
from vcc_infuse.data.sources.label_table import label_layout, read_label_file
from vcc_infuse.data.ssl_data import load_ssl
from vcc_infuse.errors import UserError
from vcc_infuse.inference.predictor import Predictor
from vcc_infuse.label import Network, PoolSource, export_run
from vcc_infuse.label.embedding import FeatureRows


@pytest.fixture(scope="module")
def taught(tmp_path_factory):
    folder = tmp_path_factory.mktemp("outputs")
    server, client = open_server(draw(folder / "in", 60), folder / "out")
    teach(server, client, 24)
    grid = client.get("/api/grid?class=0&count=4").json()
    tiles = [{"id": tile["id"], "right": True, "class": None} for tile in grid["tiles"]]
    act(client, "grid", **{"class": 0}, batch=grid["batch"], tiles=tiles)
    act(client, "foreign", image=client.get("/api/next?count=1").json()["items"][0]["id"])
    yield server, client
    server.close()


def export(client, kind):
    response = client.post("/api/export", json={"format": kind})
    assert response.status_code == 200, response.text
    return response.json()["files"]


def table(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_labels_are_read_by_train_and_suggestions_are_not(taught):
    server, client = taught
    assert export(client, "csv") == ["labels.csv", "audit.csv"]
    rows = table(server.out / "labels.csv")
    assert list(rows[0]) == ["file", "label", "source", "confidence", "split"]
    sources = [row["source"] for row in rows]
    assert (sources.count("person"), sources.count("confirmed"), len(rows)) == (24, 4, 59)  # one is foreign
    assert all(row["label"] == row["file"].removesuffix(".png").split("-")[1] for row in rows)
    assert all(0 <= float(row["confidence"]) <= 1 for row in rows)
    layout = label_layout(server.session.pool.store, "labels.csv", (server.out / "labels.csv").read_bytes(), "in")
    labeled = {file: label for file, label in layout.train if label is not None}
    assert labeled == {row["file"]: row["label"] for row in rows if row["source"] != "suggested"}
    assert layout.classes == ("blue", "green", "red")
    data = load_ssl(server.session.pool.source.path, label_file=str(server.out / "labels.csv"), validation="none")
    assert len(data.split.labeled) == 28


def test_the_audit_has_answers_that_did_not_see_the_label(taught):
    server, client = taught
    export(client, "csv")
    rows = table(server.out / "audit.csv")
    assert len(rows) == int(server.session.state.audit.sum())
    assert all(row["label"] in row["file"] for row in rows)
    wrong, count = server.session.answer.wrong
    assert (sum(row["label"] != row["predicted"] for row in rows), len(rows)) == (wrong, count)


def test_label_studio_reads_what_is_written_and_it_comes_back(taught, tmp_path):
    server, client = taught
    (name,) = export(client, "label-studio")
    tasks = json.loads((server.out / name).read_text())
    assert len(tasks) == 60
    task = next(task for task in tasks if "annotations" in task)
    result = task["annotations"][0]["result"][0]
    assert (result["from_name"], result["to_name"], result["type"]) == ("choice", "image", "choices")
    assert task["data"]["image"].endswith(f"-{result['value']['choices'][0]}.png")
    prediction = next(task for task in tasks if "predictions" in task)["predictions"][0]
    assert set(prediction) == {"model_version", "score", "result"}
    assert 0 <= prediction["score"] <= 1
    rows = [row for row in read_label_file((server.out / name).read_bytes(), name) if row.label is not None]
    assert len(rows) == 28
    again, _ = open_server(
        server.session.pool.source.path, tmp_path / "out", background=Idle(), label_file=str(server.out / name)
    )
    assert (again.session.state.label >= 0).sum() == 28
    for image in np.flatnonzero(again.session.state.label >= 0):
        assert again.session.state.classes[int(again.session.state.label[image])].name == truth(again, int(image))
    assert again.session.state.undo_depth == 0
    again.close()
    again, _ = open_server(
        server.session.pool.source.path, tmp_path / "out", background=Idle(), label_file=str(server.out / name)
    )
    assert again.session.state.version == 1  # the table was taken over once
    again.close()


def test_fiftyone_and_hugging_face(taught):
    server, client = taught
    labels = json.loads((server.out / export(client, "fiftyone")[0]).read_text())
    assert labels["classes"] == ["blue", "green", "red"]
    assert all(name.endswith(labels["classes"][number]) for name, number in labels["labels"].items())
    rows = table(server.out / export(client, "huggingface")[0])
    assert list(rows[0]) == ["file_name", "label"]
    assert {row["file_name"] for row in rows} == {f"{name}.png" for name in labels["labels"]}


def test_cleanlab_gets_probabilities_of_heads_that_did_not_see_the_label(taught):
    server, client = taught
    arrays = {name: server.out / name for name in export(client, "cleanlab")}
    probs = np.load(arrays["cleanlab/pred_probs.npy"])
    labels = np.load(arrays["cleanlab/labels.npy"])
    features = np.load(arrays["cleanlab/features.npy"])
    assert len(probs) == len(labels) == len(features) == len((server.out / "cleanlab/files.txt").read_text().split())
    from cleanlab.filter import find_label_issues

    spoiled = labels.copy()
    spoiled[0] = (spoiled[0] + 1) % 3
    assert not find_label_issues(labels, probs).any()
    assert np.flatnonzero(find_label_issues(spoiled, probs)).tolist() == [0]


def test_an_unknown_format_is_refused(taught):
    response = taught[1].post("/api/export", json={"format": "../x"})
    assert response.status_code == 400
    assert "format must be one of csv, run" in response.json()["error"]


def test_labels_are_written_at_the_end_and_when_something_changes(tmp_path, monkeypatch):
    monkeypatch.setattr("vcc_infuse.label.outputs.DELAY", 0.01)
    server, client = open_server(draw(tmp_path / "in", 3), tmp_path / "out", background=Idle())
    server.outputs.start()
    act(client, "new_class", name="=red")
    act(client, "label", image=0, **{"class": 0})
    for _ in range(500):
        if os.path.exists(tmp_path / "out" / "labels.csv") and len(table(tmp_path / "out" / "labels.csv")) == 1:
            break
        server.outputs._end.wait(0.01)
    act(client, "label", image=1, **{"class": 0})
    server.close()
    assert [row["label"] for row in table(tmp_path / "out" / "labels.csv")] == ["'=red", "'=red"]


def test_a_run_is_a_head_on_what_is_embedded_and_takes_images(tmp_path, monkeypatch):
    monkeypatch.setenv("VCC_INFUSE_CACHE", str(tmp_path / "cache"))
    network = Network("test_resnet", "none", 32)
    photos = draw(tmp_path / "in", 60)
    background = Inline(PoolSource(str(photos)), tmp_path / "out", network)
    server, client = open_server(photos, tmp_path / "out", network=network, background=background)
    teach(server, client, 30)
    act(client, "new_class", name="empty")
    response = client.post("/api/export", json={"format": "run"}).json()
    server.close()
    assert response["files"] == ["run/model.safetensors", "run/summary.json", "run/report.html"]
    again = "the method of train on the views that are embedded already; again: vcc-infuse train --config "
    assert response["note"].startswith(again)
    assert all((tmp_path / "out" / name).is_file() for name in response["files"])
    assert not (tmp_path / "cache" / "banks").exists()  # nothing was embedded again
    summary = json.loads((tmp_path / "out" / "run" / "summary.json").read_text())
    assert (summary["labels"] + summary["evaluated_images"], summary["seconds_embed"]) == (30, 0.0)
    predictor = Predictor.load(str(tmp_path / "out" / "run"))
    assert predictor.classes == ("blue", "green", "red")
    # Its network sees a file as the session did.
    stored = FeatureRows(tmp_path / "out" / "features.bin", server.session.pool.keys)
    stored.refresh()
    pixels = np.stack([server.session.pool.decoded(int(image), 32)[0] for image in stored.images])
    seen = predictor.model.backbone.encoder(predictor.views("plain", torch.from_numpy(pixels))).detach().numpy()
    np.testing.assert_allclose(seen, stored.features, atol=0.01)
    answers = predictor.predict(pixels).labels
    right = [
        predictor.classes[cls] == truth(server, int(image)) for cls, image in zip(answers, stored.images, strict=True)
    ]
    assert np.mean(right) > 0.9


def test_a_run_before_the_labeled_photos_are_read_says_so(tmp_path):
    network = Network("test_resnet", "none", 32)
    server, client = open_server(draw(tmp_path / "in", 6), tmp_path / "out", background=Idle(), network=network)
    for image, name in enumerate(("red", "green")):
        act(client, "new_class", name=name)
        act(client, "label", image=image, **{"class": image})
    request = export_run._request(server.session, server.options, server.out, server.out / "run")
    with pytest.raises(UserError, match="photos of two classes are not read yet"):
        export_run._data(request)
    server.close()


def test_a_run_needs_two_classes(tmp_path):
    server, client = open_server(draw(tmp_path / "in", 3), tmp_path / "out", background=Idle())
    with pytest.raises(UserError, match="labels of two classes"):
        server.outputs.export("run")
    assert client.post("/api/export", json={"format": "cleanlab"}).status_code == 400
    server.close()
