"""The gateway that the Ray and engine tests share, and access to its processes."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import psutil
import yaml

from serve.config.gateway import GatewayConfig
from serve.launch.ports import free_port
from support.marked import MARK, marked

ROOT = Path(__file__).parents[2]
START_TIMEOUT_S = 900
ENGINE_KEY = "the-engines-key-in-tests"
_MARK = uuid.uuid4().hex  # other gateways on this machine have pools of the same names, and tests kill replicas
AUTHORIZED = {"authorization": f"Bearer {ENGINE_KEY}"}


def session_config() -> dict[str, Any]:
    """Returns the laptop config plus the same Qwen with ngram, and simulated models that tests may break."""
    laptop: dict[str, Any] = GatewayConfig.load(ROOT / "deploy" / "laptop.yaml").model_dump(mode="json")
    laptop["models"]["tiny-kimi"]["guard"] = {"mode": "observe"}  # tests compare what the engines themselves said
    small = {"kind": "sim", "ray_actor_options": {"num_cpus": 0.1}, "graceful_shutdown_timeout_s": 5}
    slow = {"step_ms": 30, "content_tokens": [100, 100]}
    laptop["models"]["sim"] = {
        "family": "sim",
        "grammar": "qwen3_coder",
        "pools": {
            "speculative": {
                **small,
                "sim": {**slow, "num_speculative_tokens": 3},
                "health_check_period_s": 1,
                "facts": {"settings": {"rejection_sample_method": "standard"}},
            },
            "standard": {**small, "sim": slow},
        },
    }
    qwen = laptop["models"]["tiny-qwen"]
    # Correct unless a request asks it to fail, which gives the guard a real fault to heal. Mistakes of the tiny
    # model itself are delivered, marked as unclean.
    qwen["guard"] = {"on_failure": "unclean"}
    faulty = {"tool-parser-plugin": str(ROOT / "tests" / "support" / "faulty_parser.py")}
    qwen["pools"]["speculative"]["engine_args"] |= {**faulty, "tool-call-parser": "faulty_qwen3_coder"}
    ngram = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 2, "prompt_lookup_max": 4}
    laptop["models"]["tiny-qwen-ngram"] = {
        **qwen,
        "guard": laptop["models"]["tiny-kimi"]["guard"],
        "pools": {"speculative": {**qwen["pools"]["speculative"], "engine_args": {"speculative-config": ngram}}},
    }
    laptop["models"]["narrow"] = {
        "family": "sim",
        "grammar": "qwen3_coder",
        "pools": {"standard": {**small, "sim": slow, "max_ongoing_requests": 1, "max_queued_requests": 1}},
    }
    laptop["requests"] = {"pass_fields": ["vllm_xargs"]}  # tests tell a parser to fail
    laptop["quarantine"] = {"reference_share": 0}  # a test that asks for a pool must get it, whatever ran before
    return laptop


class Served(NamedTuple):
    """Base URLs of a gateway: of its data port, and of its admin API."""

    data: str
    admin_api: str


@contextmanager
def served(folder: Path) -> Iterator[Served]:
    """Run `specgate serve` in a process of its own; yields its URLs once `/ready` says so."""
    config, output, port, admin_api = folder / "serve.yaml", folder / "serve.log", free_port(), free_port()
    config.write_text(yaml.safe_dump(session_config(), allow_unicode=True))
    command = [sys.executable, "-m", "serve.cli", "serve", "--config", str(config), "--port", str(port), "--verbose"]
    environment = {**os.environ, "SPECGATE_ENGINE_KEY": ENGINE_KEY, "SPECGATE_ADMIN_PORT": str(admin_api), MARK: _MARK}
    with output.open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT, env=environment)
    try:
        _wait_until_ready(process, f"http://127.0.0.1:{port}", output)
        yield Served(f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin_api}")
    finally:
        process.send_signal(signal.SIGINT)
        code = process.wait(timeout=120)
    assert code == 0, output.read_text(errors="replace")[-3000:]


async def until_ready(url: str) -> None:
    """Wait until a gateway answers again."""
    async with aiohttp.ClientSession() as session, asyncio.timeout(120):
        while True:
            try:
                async with session.get(f"{url}/ready") as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.5)


def _wait_until_ready(process: "subprocess.Popen[bytes]", url: str, output: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{url}/ready", timeout=10) as response:
                # Another gateway on this machine could answer, and have other pools.
                if set(json.load(response)["pools"]) >= {"sim/speculative", "tiny-qwen-ngram/speculative"}:
                    return
        except (urllib.error.URLError, TimeoutError, ConnectionError, ValueError):
            pass
        time.sleep(0.5)
    raise AssertionError(f"the gateway did not become ready:\n{output.read_text(errors='replace')[-5000:]}")


def replicas(model: str, pool: str) -> list[psutil.Process]:
    """The replica processes of a pool, by the title that Ray gives them."""
    return processes(f"ServeReplica:specgate:{model}--{pool}")


def processes(title: str) -> list[psutil.Process]:
    """Those of the session's gateway that Ray gave a title."""
    found = []
    for each in marked(_MARK):
        with suppress(psutil.NoSuchProcess):  # it has ended since
            if title in " ".join(each.cmdline()):
                found.append(each)
    return found


async def engine_url(model: str, pool: str) -> str:
    """Where the one replica of a pool answers, past the gateway."""
    (replica,) = replicas(model, pool)
    return await answering(replica, "/health", AUTHORIZED)


async def answering(process: psutil.Process, path: str, headers: Mapping[str, str]) -> str:
    """Returns the base URL at which a process answers a path with 200; Ray's own ports do not."""
    async with aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=2)) as session:
        for connection in process.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN:
                url = f"http://{connection.laddr.ip}:{connection.laddr.port}"
                with suppress(aiohttp.ClientError, TimeoutError):
                    async with session.get(f"{url}{path}") as response:
                        if response.status == 200:
                            return url
    raise AssertionError(f"{process} answers {path} nowhere")


async def until_idle(model: str, pool: str) -> None:
    """Wait until vLLM says that nothing runs or waits in the pool's engine."""
    url, busy = await engine_url(model, pool), 1.0
    for _ in range(100):
        async with (
            aiohttp.ClientSession(headers=AUTHORIZED) as session,
            session.get(f"{url}/metrics") as response,
        ):
            counts = re.findall(
                r"^vllm:num_requests_(?:running|waiting)\{.*\} (\S+)$", await response.text(), re.MULTILINE
            )
        busy = sum(map(float, counts))
        if counts and not busy:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"{model}/{pool} still runs {busy:.0f} requests")
