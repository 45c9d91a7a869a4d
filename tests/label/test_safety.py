"""Attacks: each of them must fail, and cost one line."""

import io
import os
import stat
import struct
import zlib

import pytest
from PIL import Image
from starlette.testclient import TestClient

from tests.label.fakes import BASE, Idle, act, draw, open_server
from vcc_infuse.label import launch
from vcc_infuse.label.server import LARGEST_BODY, Keys

GETS = ["/api/state", "/api/next", "/api/grid?class=0", "/api/clean?kind=doubtful", "/api/class/0", "/thumb/0",
        "/image/0", "/api/events"]  # fmt: skip
NASTY = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    folder = tmp_path_factory.mktemp("safety")
    server, client = open_server(draw(folder / "in", 6), folder / "out", background=Idle())
    yield server, client
    server.close()


def stranger(server, **options):
    """Somebody without the cookie."""
    return TestClient(server.app, base_url=BASE, follow_redirects=False, **options)


@pytest.mark.parametrize("path", GETS)
def test_nothing_is_shown_without_the_cookie(opened, path):
    response = stranger(opened[0]).get(path)
    assert response.status_code == 401
    assert list(response.json()) == ["error"]


@pytest.mark.parametrize("path", ["/api/act", "/api/export"])
@pytest.mark.parametrize("cookie", [None, "x", "ü"])
def test_nothing_is_done_without_the_right_cookie(opened, path, cookie):
    headers = {"origin": BASE} | ({"cookie": f"vcc_infuse_label_8123={cookie}".encode()} if cookie else {})
    response = stranger(opened[0]).post(path, json={"action": "new_class", "name": "a"}, headers=headers)
    assert response.status_code == 401
    assert not opened[0].session.state.classes


def test_the_page_itself_needs_the_cookie_or_the_token(opened):
    client = stranger(opened[0])
    for path in ("/", "/?token=", "/?token=x", f"/?token={opened[0].keys.token[:-1]}", "/?token=%C3%BC"):
        response = client.get(path)
        assert response.status_code == 401
        assert "set-cookie" not in response.headers


def test_a_token_is_used_once_and_its_cookie_is_out_of_reach(opened):
    token = opened[0].keys.token
    response = stranger(opened[0]).get(f"/?token={token}")
    assert (response.status_code, response.headers["location"]) == (303, "/")
    cookie = response.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert token not in response.headers["set-cookie"]
    assert stranger(opened[0]).get(f"/?token={token}").status_code == 401


def test_tokens_and_secrets_cannot_be_guessed(opened):
    made = [Keys() for _ in range(50)]
    for values in ({k.token for k in made}, {k.secret for k in made}, {k.studio_token for k in made}):
        assert len(values) == 50
        assert min(map(len, values)) >= 40  # at least 160 bits
    mode = stat.S_IMODE((opened[0].out / ".session").stat().st_mode)
    assert mode == 0o600
    assert stat.S_IMODE((opened[0].out / "journal.jsonl").stat().st_mode) == 0o600


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8123", "127.0.0.1.evil.example", "[::1]", ""])
def test_another_host_is_refused_also_with_the_cookie(opened, host):
    assert opened[1].get("/api/state", headers={"host": host}).status_code == 400


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "", "http://127.0.0.1:9999", "http://127.0.0.1", "file://127.0.0.1:8123"]
)
def test_another_origin_is_refused_also_with_the_cookie(opened, origin):
    response = opened[1].post("/api/act", json={"action": "new_class", "name": "a"}, headers={"origin": origin})
    assert response.status_code == 403
    assert not opened[0].session.state.classes


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_what_a_form_can_send_is_refused(opened, kind):
    body = b'{"action": "new_class", "name": "a"}'
    response = opened[1].post("/api/act", content=body, headers={"content-type": kind})
    assert response.status_code == 415


@pytest.mark.parametrize("path", ["/api/act", "/api/export"])
def test_nothing_is_done_by_get(opened, path):
    response = opened[1].get(f"{path}?action=new_class&name=a")
    assert response.status_code == 405
    assert not opened[0].session.state.classes


@pytest.mark.parametrize(
    "image",
    [
        "..%2f..%2fetc%2fpasswd",
        "%2e%2e",
        "-1",
        "6",
        "1e3",
        "0x1",
        "٣",
        "9" * 5000,
        "0000-red.png",
        "1%00",
        "1%2f..%2f2",
    ],
)
@pytest.mark.parametrize("route", ["thumb", "image"])
def test_images_have_numbers_not_paths(opened, route, image):
    assert opened[1].get(f"/{route}/{image}").status_code == 404


@pytest.mark.parametrize("query", [f"count={'9' * 5000}", "count=0", "count=-1", "count=201", "skip=a", "skip=1,,2"])
def test_numbers_have_limits(opened, query):
    assert opened[1].get(f"/api/next?{query}").status_code == 400


@pytest.mark.parametrize(
    "name", ["..%2fserver.py", "%2e%2e%2fserver.py", "server.py", "__init__.py", ".session", "x.html%00.js"]
)
def test_only_files_of_the_page_are_served(opened, name):
    assert opened[1].get(f"/page/{name}").status_code == 404


def test_a_huge_body_is_refused(opened):
    text = b'{"action": "new_class", "name": "' + b"a" * LARGEST_BODY + b'"}'
    response = opened[1].post("/api/act", content=text, headers={"content-type": "application/json"})
    assert response.status_code == 413


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"1", b"[" * 100_000, b"\xff", b'{"action": ["label"]}'])
def test_a_body_that_is_no_action_costs_one_line(opened, body):
    response = opened[1].post("/api/act", content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert "\n" not in response.json()["error"]


@pytest.mark.parametrize(
    "fields", [{"client": 3}, {"client": "x" * 65}, {"seconds": -1}, {"seconds": "1"}, {"seconds": 1e300}]
)
def test_a_field_of_the_wrong_kind_is_refused(opened, fields):
    response = opened[1].post("/api/act", json={"action": "new_class", "name": "a", **fields})
    assert response.status_code == 400
    assert not opened[0].session.state.classes


@pytest.mark.parametrize("path", ["/", "/api/state", "/thumb/0", "/page/app.js", "/nothing", "/api/act"])
def test_every_answer_has_the_headers_of_safety(opened, path):
    headers = opened[1].get(path).headers
    assert headers["content-security-policy"].startswith("default-src 'self'")
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert "access-control-allow-origin" not in headers


def bomb(side=60_000):
    """A PNG of a few hundred bytes that promises billions of pixels."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"\0" * 100_000)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def test_a_decompression_bomb_a_link_and_a_text_are_not_shown(tmp_path):
    photos = draw(tmp_path / "in", 2)
    (photos / "bomb.png").write_bytes(bomb())
    secret = tmp_path / "secret.png"
    Image.new("RGB", (4, 4)).save(secret)
    (photos / "link.png").symlink_to(secret)
    (tmp_path / "outside").mkdir()
    Image.new("RGB", (4, 4)).save(tmp_path / "outside" / "deep.png")
    (photos / "folder").symlink_to(tmp_path / "outside")
    (photos / "passwd.png").symlink_to("/etc/passwd")
    (photos / "inside.png").symlink_to(photos / "0000-red.png")
    server, client = open_server(photos, tmp_path / "out")
    names = server.session.pool.names
    shown = {name for image, name in enumerate(names) if client.get(f"/image/{image}").status_code == 200}
    assert shown == {"0000-red.png", "0001-green.png", "inside.png"}
    thumbs = {name for image, name in enumerate(names) if client.get(f"/thumb/{image}").status_code == 200}
    assert thumbs == shown
    assert client.get("/api/state").json()["message"].startswith("4 images cannot be read")
    server.close()
    server, client = open_server(photos, tmp_path / "out2", background=Idle(), follow_links=True)
    assert client.get(f"/image/{names.index('link.png')}").status_code == 200
    server.close()


def test_images_are_shown_without_what_else_was_in_the_file(tmp_path):
    photos = tmp_path / "in"
    photos.mkdir()
    exif = Image.Exif()
    exif[0x010E] = "where I live"
    Image.new("RGB", (2000, 50)).save(photos / "a.jpg", exif=exif)
    server, client = open_server(photos, tmp_path / "out", background=Idle())
    for path, side in (("/image/0", 1280), ("/thumb/0", 192)):
        content = client.get(path).content
        assert b"where I live" not in content
        assert max(Image.open(io.BytesIO(content)).size) == side
    server.close()


@pytest.mark.skipif(os.name == "nt", reason="such names cannot be")
def test_html_in_names_stays_text(tmp_path):
    photos = draw(tmp_path / NASTY.replace("/", ""), 2)
    (photos / "0000-red.png").rename(photos / f"{NASTY}\udcff.png")
    server, client = open_server(photos, tmp_path / "out")
    state = act(client, "new_class", name=NASTY)
    assert state["classes"][0]["name"] == NASTY
    act(client, "label", image=1, **{"class": 0})
    response = client.get("/api/state")
    assert response.headers["content-type"] == "application/json"
    server.close()
    assert NASTY in (tmp_path / "out" / "labels.csv").read_text(errors="surrogateescape")


def test_the_server_listens_on_the_loopback_address_only(tmp_path):
    with launch._listen(0, tmp_path) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"


@pytest.mark.parametrize("content", [b"", b"short", b"\xff" * 43, b"a" * 42 + b"\n;x", b"x" * 65])
def test_a_damaged_secret_is_made_anew(tmp_path, content):
    (tmp_path / ".session").write_bytes(content)
    secret = launch._stored_secret(tmp_path)
    assert len(secret) == 43
    assert secret.encode() not in (content, b"x" * 43)
    assert launch._stored_secret(tmp_path) == secret
