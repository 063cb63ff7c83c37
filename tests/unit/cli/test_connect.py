"""The lines for each agent are whole, name the gateway and never a key."""

import json
import tomllib
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

Run = Callable[..., tuple[int, str]]
AGENTS = ("codex", "claude-code", "opencode", "opencode2", "qwen-code", "cline", "kimi", "openai", "anthropic", "curl")


@pytest.fixture
def gateway() -> Iterator[str]:
    class Models(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(
                json.dumps({"data": [{"id": "kimi-k2.6", "max_model_len": 65536}, {"id": "other"}]}).encode()
            )

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Models)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("suffix", ["", "/v1", "/"])
def test_lines_name_the_gateway_once_and_its_first_model(
    specgate: Run, gateway: str, agent: str, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECGATE_KEY", "sg-a-secret")
    code, output = specgate("connect", agent, "--url", gateway + suffix)
    assert code == 0
    assert "kimi-k2.6" in output
    assert gateway in output
    assert "/v1/v1" not in output
    assert "sg-a-secret" not in output


def test_files_can_be_read_by_what_reads_them(specgate: Run) -> None:
    for agent in ("codex", "kimi"):
        _, output = specgate("connect", agent, "--url", "http://head:8000", "--model", "m")
        assert "http://head:8000/v1" in str(tomllib.loads(output))
    for agent in ("opencode", "opencode2"):
        _, output = specgate("connect", agent, "--url", "http://head:8000", "--model", "m")
        assert json.loads(output.partition("\n")[2])["model"] == "specgate/m"


def test_agents_learn_how_long_a_request_may_be(specgate: Run, gateway: str) -> None:
    _, codex = specgate("connect", "codex", "--url", gateway)
    _, kimi = specgate("connect", "kimi", "--url", gateway)
    _, opencode = specgate("connect", "opencode", "--url", gateway)
    assert tomllib.loads(codex)["model_context_window"] == 65536
    assert tomllib.loads(kimi)["models"]["kimi-k2.6"]["max_context_size"] == 65536
    models = json.loads(opencode.partition("\n")[2])["provider"]["specgate"]["models"]
    assert models["kimi-k2.6"]["limit"] == {"context": 65536, "output": 16384}


def test_what_is_missing_is_told_with_what_to_do(specgate: Run) -> None:
    for given in (["emacs"], []):
        code, output = specgate("connect", *given)
        assert (code, "codex" in output) == (2, True)
    code, output = specgate("connect", "codex", "--url", "http://127.0.0.1:9")
    assert code == 2
    assert "--model" in " ".join(output.split())
