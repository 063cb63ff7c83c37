"""Starts the gateway of an image in front of a scripted engine, asks it for an answer, and stops it again."""

import json
import signal
import subprocess
import sys
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

_URL = "http://127.0.0.1:8765"
_START_S = 120.0
_SAID = "Hello."
_MODEL = {"id": "m", "object": "model", "owned_by": "vllm", "root": "Qwen/Qwen3-8B", "max_model_len": 4096}
_ANSWERS = {
    "/v1/models": json.dumps({"data": [_MODEL]}),
    "/version": '{"version": "0.32.0"}',
    "/metrics": 'process_start_time_seconds 1.0\nvllm:cache_config_info{enable_prefix_caching="True"} 1.0\n',
}


class Engine(BaseHTTPRequestHandler):
    """Answers as vLLM without a drafter does, and always the same."""

    def do_GET(self) -> None:
        """Tells what it is."""
        self._answer(_ANSWERS.get(self.path, ""))

    def do_POST(self) -> None:
        """Answers a chat."""
        self.rfile.read(int(self.headers["content-length"]))
        message = {"role": "assistant", "content": _SAID}
        answer = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
        self._answer(json.dumps(answer) if self.path == "/v1/chat/completions" else "")

    def log_message(self, *_: object) -> None:
        """Says nothing."""

    def _answer(self, text: str) -> None:
        self.send_response(200 if text else 404)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())


def ask(path: str, body: object = None) -> dict[str, object]:
    """Returns what the gateway answers."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{_URL}{path}", data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=5) as response:
        answer: dict[str, object] = json.load(response)
        return answer


def main() -> int:
    """Returns the gateway's exit code."""
    engine = ThreadingHTTPServer(("127.0.0.1", 0), Engine)
    Thread(target=engine.serve_forever, daemon=True).start()
    gateway = subprocess.Popen(["specgate", "front", f"http://127.0.0.1:{engine.server_port}", "--port", "8765"])
    deadline_s = time.monotonic() + _START_S
    while True:
        try:
            print(ask("/health"), ask("/v1/models"))
            break
        except OSError as error:
            if gateway.poll() is not None or time.monotonic() > deadline_s:
                sys.exit(f"the gateway did not start: {error}")
            time.sleep(0.2)
    answer = ask("/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": "Hi"}]})
    if _SAID not in json.dumps(answer):
        sys.exit(f"the gateway answered {answer}")
    gateway.send_signal(signal.SIGTERM)
    return gateway.wait(timeout=120)


if __name__ == "__main__":
    sys.exit(main())
