"""`python -m bench.gateway.soak`: many requests, many streams left in the middle; memory and sockets stay flat."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys

import psutil
import uvloop

from bench import peers
from bench.gateway import load, runner, sides, traffic
from bench.gateway.traffic import Shape

_WARM_UP = 2000  # requests before the first look: caches fill, the allocator finds its size
_AT_ONCE = 32


async def leave(port: int, request: bytes) -> None:
    """Ask for a stream and leave when its first bytes are there."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    await reader.readuntil(b"data: ")
    writer.transport.abort()


async def leave_many(port: int, shape: Shape, count: int) -> None:
    """Leave `count` streams in the middle, `_AT_ONCE` at a time."""
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: soak\r\ncontent-length: {len(shape.body)}\r\n\r\n"
    for _ in range(0, count, _AT_ONCE):
        await asyncio.gather(*(leave(port, head.encode() + shape.body) for _ in range(_AT_ONCE)))


def state(pid: int) -> dict[str, float]:
    """Memory in MiB, and descriptors and connections, of one process."""
    process = psutil.Process(pid)
    return {
        "rss_mb": round(process.memory_info().rss / 2**20, 1),
        "descriptors": process.num_fds(),
        "connections": len([each for each in process.net_connections() if each.status == "ESTABLISHED"]),
    }


async def settled(pid: int) -> dict[str, float]:
    """The state once the last connections of clients are closed; after 10 s as it is."""
    for _ in range(20):
        await asyncio.sleep(0.5)
        if state(pid)["connections"] <= 2 * _AT_ONCE:
            break
    return state(pid)


async def soak(running: peers.Running, requests: int, leaves: int) -> list[dict[str, object]]:
    """The process's state after the warm-up and after every tenth of the work."""
    port, shapes = int(running.url.rpartition(":")[2]), traffic.shapes()
    warm = load.Sample()
    while len(warm.latency_ms) < _WARM_UP:
        warm = await load.run(running.url, shapes["stream"], _AT_ONCE, 5.0)
    rows: list[dict[str, object]] = [{"requests": 0, "left": 0, **await settled(running.pid)}]
    answered = 0
    for tenth in range(1, 11):
        while answered < requests * tenth / 10:
            for name in ("short", "stream"):
                sample = await load.run(running.url, shapes[name], _AT_ONCE, 1.0)
                if sample.wrong:
                    raise SystemExit(f"{sample.wrong} wrong answers: {sample.seen}")
                answered += len(sample.latency_ms)
        await leave_many(port, shapes["paced"], leaves // 10)
        rows.append({"requests": answered, "left": leaves // 10 * tenth, **await settled(running.pid)})
        print(json.dumps(rows[-1]), flush=True)
    return rows


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--requests", type=int, default=100_000)
    options.add_argument("--leaves", type=int, default=10_000, help="streams left in the middle")
    options.add_argument("--growth", type=float, default=15.0, help="MiB that memory may grow by after the warm-up")
    given = options.parse_args()
    with runner.upstream() as engine, peers.launched(sides.REPLICA, engine.url, traffic.MODEL) as running:
        rows = uvloop.run(soak(running, given.requests, given.leaves))
    first, last = rows[0], rows[-1]
    grown = float(str(last["rss_mb"])) - float(str(first["rss_mb"]))
    sockets = int(str(last["descriptors"])) - int(str(first["descriptors"]))
    print(
        f"memory {first['rss_mb']} -> {last['rss_mb']} MiB, descriptors {first['descriptors']} -> {last['descriptors']}"
    )
    if grown > given.growth or sockets > _AT_ONCE:
        sys.exit("memory or sockets grew")


if __name__ == "__main__":
    main()
