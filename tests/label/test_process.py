"""A real server process, killed in the middle of clicks: nothing that was answered is lost."""

import http.client
import json
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from PIL import Image

from tests.label.fakes import FakeNetwork, Idle, draw, open_server
from vcc_infuse.cli.main import main
from vcc_infuse.errors import UserError
from vcc_infuse.label import PoolSource
from vcc_infuse.label.processes import Processes

SERVER = """
import sys
from tests.label.fakes import FakeNetwork, Idle
from vcc_infuse.label import LabelOptions, PoolSource, launch
launch.Processes = lambda *_: Idle()
launch.serve(PoolSource(sys.argv[1]), LabelOptions(out=sys.argv[2], network=FakeNetwork()), browser=False)
"""
HOME = Path(__file__).parents[2]


def test_kill_loses_no_click_that_was_answered_and_a_second_server_is_refused(tmp_path):
    photos = draw(tmp_path / "in", 200)
    command = [sys.executable, "-c", SERVER, str(photos), str(tmp_path / "out")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=HOME)
    try:
        url = next(found[1] for line in process.stderr if (found := re.search(r"open (http\S+)", line)))
        port = int(re.search(r":(\d+)/", url)[1])
        with pytest.raises(UserError, match="in use by another server"):
            open_server(photos, tmp_path / "out", background=Idle())
        answered = []
        threads = [threading.Thread(target=click, args=(port, tmp_path, part, answered)) for part in range(2)]
        for thread in threads:
            thread.start()
        while len(answered) < 40 and threads[0].is_alive():
            threads[0].join(0.01)
        assert len(answered) >= 40
        process.send_signal(signal.SIGKILL)
        for thread in threads:
            thread.join(30)
    finally:
        process.kill()
        process.wait(30)
        process.stderr.close()
    server, _ = open_server(photos, tmp_path / "out", background=Idle())
    state = server.session.state
    names = {item.name for item in state.classes.values()}
    assert set(answered) <= names
    assert len(names) <= len(answered) + 2  # at most the click that each browser was waiting for
    server.close()


def click(port, folder, part, answered):
    """Make classes one after another until the server is gone; note those that it has answered."""
    cookie = f"vcc_infuse_label_{port}={(folder / 'out' / '.session').read_text()}"
    headers = {"origin": f"http://127.0.0.1:{port}", "content-type": "application/json", "cookie": cookie}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        for number in range(10_000):
            body = json.dumps({"action": "new_class", "name": f"{part} {number}"})
            connection.request("POST", "/api/act", body, headers)
            response = connection.getresponse()
            response.read()
            if response.status == 200:
                answered.append(f"{part} {number}")
    except (OSError, http.client.HTTPException):
        pass
    finally:
        connection.close()


@pytest.mark.slow
@pytest.mark.parametrize(("child", "said"), [(0, "embedding has stopped"), (1, "the model no longer learns")])
def test_a_process_beside_the_server_that_is_killed_is_named(tmp_path, child, said):
    heard = []
    told = threading.Event()

    def on_progress(progress):
        heard.append(progress.fault)
        if progress.fault:
            told.set()

    source = PoolSource(str(draw(tmp_path / "in", 3)))
    (tmp_path / "out").mkdir()
    beside = Processes(source, FakeNetwork(), tmp_path / "out", 0)
    beside.start(on_progress, lambda answer: None)
    try:
        beside.children[child][0].kill()
        assert told.wait(30)
        assert heard[-1] == f"{said}: its process was ended; start the command again, nothing is lost"
        told.clear()
    finally:
        beside.close()
    assert not told.wait(0.2)  # what we end ourselves is no news


def test_a_port_that_cannot_be_is_refused_in_one_line(tmp_path, capsys):
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    words = ["label", str(tmp_path), "--out", f"{tmp_path}-labels", "--no-browser"]
    assert main([*words, "--port", "99999"]) == 2
    assert "--port must be an integer from 0 to 65535, got 99999" in capsys.readouterr().err
