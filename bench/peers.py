"""The gateways that specgate is compared with, and how each is installed and started; one row per gateway.

Every peer has its own environment under `build/peers` and is started as its documentation says, with no tuning beyond
quiet logs. `python -m bench.peers` installs them all and reports those that fail to install.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from serve.launch.ports import free_port

ROOT = Path(__file__).parents[1]
HOME = ROOT / "build" / "peers"
_UV = Path(sys.executable).with_name("uv")
_START_TIMEOUT_S = 180.0


class PeerError(Exception):
    """A peer did not install or did not start; the message ends with the peer's own output."""


@dataclass(frozen=True)
class Peer:
    """One gateway.

    Attributes:
        name: Name shown in tables.
        requirements: Arguments of `uv pip install`; empty if the peer is in our own environment.
        command: Command line, in which `{bin}`, `{port}`, `{spare}` (another free port), `{upstream}` (base URL without
            `/v1`), `{model}` and `{config}` (the file below) are filled in.
        config: Text of its configuration file, filled in the same way; empty if it has none.
        key: Bearer token that it expects from clients.
        python: Python version of its environment.
        environment: Environment variables for installing and running it.
        folder: Where the command runs; its modules win over installed ones.
    """

    name: str
    requirements: tuple[str, ...]
    command: tuple[str, ...]
    config: str = ""
    key: str | None = None
    python: str = "3.11"
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: Path = ROOT

    @property
    def bin(self) -> Path:
        """The folder with its programs."""
        return HOME / self.name / "bin" if self.requirements else Path(sys.executable).parent


@dataclass(frozen=True)
class Running:
    """A peer that is up.

    Attributes:
        url: Base URL, without `/v1`.
        key: Bearer token that it expects.
        pid: The process that was started; its children belong to the peer too.
    """

    url: str
    key: str | None
    pid: int


# Not on PyPI. Where GitHub is out of reach, set PRODUCTION_STACK_SOURCE to a folder with this commit. uv uses a Python
# 3.12 from the PATH, or downloads one.
_PRODUCTION_STACK = os.environ.get(
    "PRODUCTION_STACK_SOURCE",
    "git+https://github.com/vllm-project/production-stack@a6c01db05f65f556235413ba8dbcfb0c01132fff",
)
_ROUTER = (
    "--host", "127.0.0.1", "--port", "{port}", "--prometheus-host", "127.0.0.1", "--prometheus-port", "{spare}",
    "--worker-urls", "{upstream}", "--policy", "round_robin",
)  # fmt: skip
_SPECGATE = """
models:
  {model}:
    family: qwen3
    grammar: hermes
    pools:
      standard: {{ kind: remote, url: "{upstream}", facts: {{ engine: vllm, engine_version: 0.32.0, method: none }} }}
"""
_LITELLM = """
model_list:
  - model_name: {model}
    litellm_params: {{ model: openai/{model}, api_base: "{upstream}/v1", api_key: none }}
general_settings: {{ master_key: sk-bench }}
"""

SPECGATE = Peer(
    "specgate",
    (),
    ("{bin}/specgate", "serve", "--config", "{config}", "--port", "{port}"),
    config=_SPECGATE,
    # While others are installed or measured, Ray's proxy can take longer to start than Ray waits for it.
    environment={"RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60"},
)
PEERS = (
    Peer(
        "smg",
        ("smg==1.13.0",),
        ("{bin}/smg", "launch", *_ROUTER, "--backend", "vllm", "--disable-tokenizer-autoload", "--log-level", "warn"),
    ),
    Peer("vllm-router", ("vllm-router==0.1.17",), ("{bin}/vllm-router", *_ROUTER, "--log-level", "error")),
    Peer(
        "sglang-router",
        ("sglang-router==0.3.2",),
        ("{bin}/python", "-m", "sglang_router.launch_router", *_ROUTER, "--log-level", "error"),
    ),
    Peer(
        "production-stack",
        (_PRODUCTION_STACK,),
        ("{bin}/vllm-router", "--host", "127.0.0.1", "--port", "{port}", "--service-discovery", "static",
         "--static-backends", "{upstream}", "--static-models", "{model}", "--routing-logic", "roundrobin",
         "--log-level", "error"),
        python="3.12",
        environment={"SETUPTOOLS_SCM_PRETEND_VERSION": "0.1.12"},
    ),
    Peer(
        "litellm",
        # Without the OpenTelemetry packages it retries their import on every request.
        ("litellm[proxy]==1.106.2", "opentelemetry-sdk", "opentelemetry-exporter-otlp"),
        ("{bin}/litellm", "--config", "{config}", "--host", "127.0.0.1", "--port", "{port}", "--num_workers", "1"),
        config=_LITELLM,
        key="sk-bench",
        environment={"LITELLM_MODE": "PRODUCTION", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"},
    ),
)  # fmt: skip
BY_NAME = {peer.name: peer for peer in (SPECGATE, *PEERS)}


def install(peer: Peer) -> None:
    """Create the peer's environment unless it exists already.

    Raises:
        PeerError: The peer cannot be installed here.
    """
    stamp = HOME / peer.name / ".installed"
    requirements = "\n".join(peer.requirements)
    if not peer.requirements or (stamp.exists() and stamp.read_text() == requirements):
        return
    environment = {**os.environ, **peer.environment}
    python = HOME / peer.name / "bin" / "python"
    for arguments in (
        ("venv", "-q", "--clear", "--python", peer.python, str(HOME / peer.name)),
        ("pip", "install", "-q", "--python", str(python), *peer.requirements),
    ):
        uv = subprocess.run([_UV, *arguments], env=environment, capture_output=True, text=True, check=False)
        if uv.returncode:
            raise PeerError(f"{peer.name} could not be installed: {uv.stderr.strip()[-1000:]}")
    stamp.write_text(requirements)


def version(peer: Peer) -> str:
    """Returns the installed version of the peer's package."""
    if not peer.requirements:
        return "this commit"
    listed = subprocess.run(
        [_UV, "pip", "list", "-q", "--format", "json", "--python", str(peer.bin / "python")],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    versions = {entry["name"]: entry["version"] for entry in json.loads(listed)}
    package = "vllm-router" if peer.name == "production-stack" else peer.name
    return str(versions[package])


@contextlib.contextmanager
def launched(peer: Peer, upstream: str, model: str) -> Iterator[Running]:
    """Start an installed peer in front of one upstream, and stop it at the end.

    Args:
        peer: The peer to start.
        upstream: Base URL without `/v1`; serves `GET /health`, `GET /v1/models` and chat completions.
        model: The model's name, at the upstream and at the peer.

    Raises:
        PeerError: The peer did not answer a chat completion within three minutes.
    """
    port = free_port()
    folder = HOME / "run"
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / f"{peer.name}-{port}.yaml"
    log = folder / f"{peer.name}-{port}.log"
    names = {"bin": peer.bin, "port": port, "spare": free_port(), "upstream": upstream, "model": model}
    config.write_text(peer.config.format(**names))
    command = [part.format(config=config, **names) for part in peer.command]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env={**os.environ, **peer.environment}, cwd=peer.folder,
            start_new_session=True,
        )  # fmt: skip
    running = Running(f"http://127.0.0.1:{port}", peer.key, process.pid)
    try:
        _wait_until_ready(peer, running, process, model, log)
        yield running
    finally:
        _stop(process)


def _wait_until_ready(peer: Peer, running: Running, process: "subprocess.Popen[bytes]", model: str, log: Path) -> None:
    """Wait for the first answered request: some peers report healthy before they know their engines."""
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError, urllib.error.HTTPError):
            ask(running, model)
            return
        time.sleep(0.2)
    tail = log.read_text(errors="replace")[-1000:]
    raise PeerError(f"{peer.name} does not answer on {running.url}; its log ends with: {tail}")


def ask(running: Running, model: str) -> None:
    """Send one short chat completion.

    Raises:
        OSError: It was not answered with status 200.
    """
    body = {"model": model, "messages": [{"role": "user", "content": "ready?"}], "max_tokens": 1}
    headers = {"content-type": "application/json"}
    if running.key:
        headers["authorization"] = f"Bearer {running.key}"
    request = urllib.request.Request(f"{running.url}/v1/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=10) as response:
        response.read()


def stop_when_told() -> None:
    """Turn SIGTERM into a normal exit, so that everything this program has launched is stopped."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended early"))


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """Terminate the peer, then kill what is left of it: one peer waits three minutes for open streams.

    Only the parent gets SIGTERM. If Ray's processes got it at the same moment, HAProxy would be left behind.
    """
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(30.0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(5.0)


def main() -> None:
    """Install every peer and print its version or the error."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="PEER", help=f"of: {', '.join(p.name for p in PEERS)} (all)")
    for name in parser.parse_args().names or [peer.name for peer in PEERS]:
        if name not in BY_NAME:
            parser.error(f"unknown peer {name!r}; known: {', '.join(BY_NAME)}")
        try:
            install(BY_NAME[name])
            print(f"{name}: {version(BY_NAME[name])}")
        except PeerError as error:
            print(error)


if __name__ == "__main__":
    main()
