"""Nothing is reported to anybody: ONNX Runtime's telemetry stays off, whoever imports it."""

import os
import subprocess
import sys


def files_after(code, home):
    """What a fresh process leaves in its home."""
    home.mkdir()
    hidden = {"CI", "ORT_DISABLE_TELEMETRY", "XDG_CACHE_HOME", "GITHUB_ACTIONS"}
    env = {name: value for name, value in os.environ.items() if name not in hidden}
    subprocess.run([sys.executable, "-c", code], env={**env, "HOME": str(home)}, check=True, capture_output=True)
    return [path.name for path in home.rglob("*") if path.is_file()]


def test_no_device_number_is_stored(tmp_path):
    assert files_after("import vcc_infuse; import onnxruntime", tmp_path / "home") == []


def test_a_users_choice_is_kept():
    code = "import os; import vcc_infuse; print(os.environ['ORT_DISABLE_TELEMETRY'])"
    env = {**os.environ, "ORT_DISABLE_TELEMETRY": "0"}
    ended = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert ended.stdout == "0\n"
