"""Starts the gateway of an image, asks it who it is, and stops it again: for `.ci/image gateway`."""

import json
import signal
import subprocess
import sys
import time
import urllib.request

_URL = "http://127.0.0.1:8765"
_START_S = 120.0


def ask(path: str) -> dict[str, object]:
    """Returns what the gateway answers."""
    with urllib.request.urlopen(f"{_URL}{path}", timeout=5) as response:
        answer: dict[str, object] = json.load(response)
        return answer


def main(config: str) -> int:
    """Returns the gateway's exit code."""
    gateway = subprocess.Popen(["specgate", "serve", "--config", config, "--port", "8765"])
    deadline_s = time.monotonic() + _START_S
    while True:
        try:
            print(ask("/health"), ask("/v1/models"))
            break
        except OSError as error:
            if gateway.poll() is not None or time.monotonic() > deadline_s:
                sys.exit(f"the gateway did not start: {error}")
            time.sleep(1)
    gateway.send_signal(signal.SIGINT)
    return gateway.wait(timeout=120)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
