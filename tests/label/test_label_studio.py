"""The five routes that Label Studio calls, with the bodies that its documentation shows."""

import base64

import pytest
from starlette.testclient import TestClient

from tests.label.fakes import BASE, draw, open_server, teach, truth

CONFIG = '<View><Image name="photo" value="$image"/><Choices name="color" toName="photo"></Choices></View>'


@pytest.fixture(scope="module")
def studio(tmp_path_factory):
    folder = tmp_path_factory.mktemp("studio")
    server, client = open_server(draw(folder / "in", 40), folder / "out", label_studio=True)
    teach(server, client, 12)
    token = server.keys.studio_token
    yield server, TestClient(server.app, base_url=BASE, headers={"authorization": f"Token {token}"})
    server.close()


def task(server, image, prefix="/data/local-files/?d=in/"):
    return {"id": 7, "data": {"image": f"{prefix}{server.session.pool.names[image]}"}}


def test_predict_answers_every_task(studio):
    server, client = studio
    tasks = [task(server, 30), task(server, 31, "/data/upload/1/0a1b2c3d-"), {"id": 9, "data": {"image": "none.png"}}]
    body = {"tasks": tasks, "project": "1.1", "label_config": CONFIG, "params": {}}
    results = client.post("/predict", json=body).json()["results"]
    for image, answer in zip((30, 31), results, strict=False):
        (region,) = answer["result"]
        assert region["value"]["choices"] == [truth(server, image)]
        assert (region["from_name"], region["to_name"], region["type"]) == ("color", "photo", "choices")
        assert 0 < answer["score"] <= 1
    assert results[2]["result"] == []


def test_annotations_become_labels(studio):
    server, client = studio
    region = {"from_name": "color", "to_name": "photo", "type": "choices", "value": {"choices": ["violet"]}}
    body = {"action": "ANNOTATION_CREATED", "task": task(server, 33), "annotation": {"result": [region]}}
    assert client.post("/webhook", json=body).status_code == 201
    state = server.session.state
    assert state.classes[int(state.label[33])].name == "violet"
    assert client.post("/webhook", json={**body, "action": "ANNOTATION_DELETED"}).status_code == 201
    assert state.label[33] == -1
    for odd in ({"action": "START_TRAINING"}, {"action": "ANNOTATION_CREATED", "task": 3}, {"action": "PROJECT"}, {}):
        assert client.post("/webhook", json=odd).status_code == 201


def test_setup_health_and_metrics(studio):
    _, client = studio
    assert list(client.post("/setup", json={"project": "1", "schema": CONFIG}).json()) == ["model_version"]
    assert client.get("/health").json() == {"status": "UP", "model_class": "vcc-infuse"}
    assert client.get("/metrics").status_code == 200


def test_the_token_may_be_a_password(studio):
    server, client = studio
    words = base64.b64encode(f"label:{server.keys.studio_token}".encode()).decode()
    assert client.get("/health", headers={"authorization": f"Basic {words}"}).status_code == 200


@pytest.mark.parametrize("header", ["", "Token", "Token x", "Basic !!", "Basic eDp5", "Digest x", "Bearer "])
@pytest.mark.parametrize("path", ["/predict", "/setup", "/webhook"])
def test_nobody_else_is_answered(studio, header, path):
    assert studio[1].post(path, json={}, headers={"authorization": header}).status_code == 401
    assert studio[1].get("/health", headers={"authorization": header}).status_code == 401


def test_a_form_and_a_foreign_host_are_refused(studio):
    assert studio[1].post("/predict", content=b"{}", headers={"content-type": "text/plain"}).status_code == 415
    assert studio[1].get("/health", headers={"host": "evil.example"}).status_code == 400
    assert studio[1].post("/predict", json={"tasks": [3]}).status_code == 400


def test_without_the_option_there_are_no_such_routes(tmp_path):
    server, client = open_server(draw(tmp_path / "in", 3), tmp_path / "out")
    assert client.get("/health").status_code == 404
    server.close()
