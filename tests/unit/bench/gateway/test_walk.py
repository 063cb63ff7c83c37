"""The walk of a request through the files, as a command prints it."""

import subprocess
import sys


def test_the_walk_names_the_files_that_a_request_crosses() -> None:
    command = [sys.executable, "-m", "bench.walk", "--files"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    plain, guarded, messages = printed.split("files, ")[1:]
    assert "serve/stream/line.py" in plain
    assert "serve/guard/response.py" not in plain
    assert "serve/guard/response.py" in guarded
    assert "serve/dialects/api.py" in messages
