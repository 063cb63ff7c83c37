"""How long a long body holds the event loop: `python -m bench.gateway.long_body [--mb 32]`.

A gateway replica and its engine run in one process. While a request with a body of many megabytes is read, decided,
patched and sent, a task looks at the clock as often as it can. Its longest gap is what another request would have had
to wait. A gateway whose answer is ready would tell nothing, so the engine answers at once.
"""

import argparse
import asyncio
import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from bench.gateway import upstream
from bench.gateway.in_process_side import Link, Loop
from serve.config.gateway import GatewayConfig
from serve.gateway.ingress import GatewayReplica
from serve.http1.asgi import AsgiMessage

_MB = 1024 * 1024
_PROSE = "天气很好，我们去公园散步。"  # more spaces than a body may have would be refused
_TOOL = {"type": "function", "function": {"name": "search", "parameters": {"type": "object", "properties": {}}}}
_CALL = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": '{"a": '}}
_URL = "http://127.0.0.1:1"
_MODEL: dict[str, Any] = {
    "family": "qwen3",
    "grammar": "hermes",
    "thinking": True,
    "pools": {
        "p": {
            "kind": "remote",
            "url": _URL,
            "served_name": "theirs",
            "reasoning_field": "reasoning",
            "facts": {"engine": "vllm", "engine_version": "0.32.0", "method": "none"},
        }
    },
}


def bodies(size_bytes: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields bodies of about such a size, each with its name."""
    base = {"model": "m:nospec", "n": None, "reasoning_effort": "none", "thinking": {"type": "disabled"}}
    text = _PROSE * (size_bytes // len(_PROSE.encode()))
    turn = _PROSE * (16 * 1024 // len(_PROSE.encode()))
    yield "one long message", {**base, "messages": [{"role": "user", "content": text}]}
    turns = [{"role": "user", "content": turn}, {"role": "assistant", "content": "ok", "reasoning_content": turn}]
    turns *= size_bytes // (2 * len(turn.encode()))
    yield "many turns with reasoning", {**base, "messages": [*turns, {"role": "user", "content": "go"}]}
    broken = [{"role": "assistant", "content": turn, "tool_calls": [_CALL]}, {"role": "tool", "tool_call_id": "c1"}]
    broken *= size_bytes // len(turn.encode())
    yield "a history to repair", {**base, "tools": [_TOOL], "messages": [*broken, {"role": "user", "content": "go"}]}
    url = "data:image/png;base64," + "A" * size_bytes
    image = {"type": "image_url", "image_url": {"url": url}}
    yield "an image", {**base, "messages": [{"role": "user", "content": [image]}]}


class _Engine(Loop):
    """An event loop whose connections lead to an engine that answers at once and copies nothing of what it gets."""

    async def create_connection(self, factory: Any, *_: Any, **__: Any) -> Any:
        protocol = factory()
        left_bytes = 0

        def deliver(data: bytes) -> None:
            nonlocal left_bytes
            if not left_bytes:
                head, _, _ = data[:8192].partition(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                left_bytes = length + len(head) + 4
            left_bytes -= len(data)
            if not left_bytes:
                self.call_soon(protocol.data_received, upstream.WHOLE)

        link = _Link(deliver)
        protocol.connection_made(link)
        return link, protocol


class _Link(Link):
    def writelines(self, parts: Iterable[bytes]) -> None:  # type: ignore[override]
        for part in parts:
            self.write(part)


async def _gaps(stop: asyncio.Event) -> float:
    longest_s, last_s = 0.0, time.perf_counter()
    while not stop.is_set():
        await asyncio.sleep(0)
        now_s = time.perf_counter()
        longest_s, last_s = max(longest_s, now_s - last_s), now_s
    return longest_s


async def ask(replica: GatewayReplica, body: bytes) -> tuple[int, float, float]:
    """Sends a body to the gateway; returns the status, the longest gap and the time of it all, both in seconds."""
    parts = [body[start : start + 256 * 1024] for start in range(0, len(body), 256 * 1024)]
    statuses: list[int] = []

    async def receive() -> AsgiMessage:
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    async def send(message: AsgiMessage) -> None:
        if "status" in message:
            statuses.append(message["status"])

    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": headers}
    stop = asyncio.Event()
    watching = asyncio.create_task(_gaps(stop))
    await asyncio.sleep(0)
    began_s = time.perf_counter()
    await replica.hot[scope["path"]](scope, receive, send)  # type: ignore[index]
    took_s = time.perf_counter() - began_s
    stop.set()
    return statuses[0], await watching, took_s


async def measure(size_bytes: int, rounds: int) -> Mapping[str, float]:
    """Prints a line a body; returns the longest gaps in milliseconds."""
    limits = {"max_body_bytes": 2 * size_bytes}
    config = {"models": {"m": _MODEL}, "limits": limits, "rate_limits": {"enabled": True}}
    replica = GatewayReplica(GatewayConfig.parse(config).model_dump(mode="json"), [])
    stop = asyncio.Event()
    asyncio.get_running_loop().call_later(1.0, stop.set)
    found = {"nothing": await _gaps(stop) * 1000}
    print(f"nothing: longest gap {found['nothing']:.1f} ms, which is what else runs on this machine", flush=True)
    for name, members in bodies(size_bytes):
        body = json.dumps(members, ensure_ascii=False).encode()
        runs = [await ask(replica, body) for _ in range(rounds)]
        status, gap_s, took_s = min(runs, key=lambda run: run[1])
        found[name] = gap_s * 1000
        figures = f"longest gap {gap_s * 1000:.1f} ms of {took_s * 1000:.0f} ms"
        print(f"{name}: status {status}, {len(body) / _MB:.0f} MB, {figures}", flush=True)
    return found


@contextmanager
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner(loop_factory=lambda: _Engine(1)) as made:
        yield made


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--mb", type=int, default=31)
    options.add_argument("--rounds", type=int, default=5, help="of which the best counts: others use this machine too")
    given = options.parse_args()
    with runner() as made:
        made.run(measure(given.mb * _MB, given.rounds))


if __name__ == "__main__":
    main()
