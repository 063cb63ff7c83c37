"""Checks that memory, sockets and tasks stay flat over many requests and disconnects: `python -m bench.gateway.soak`.

Runs one gateway replica in front of the fake engine. Clients disconnect at one of three points: right after the
request, in mid-stream, and in mid-stream under the guard.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import uvloop

from bench import peers
from bench.gateway import load, runner, sides, traffic
from bench.gateway.replica import STATE

RESULTS = Path(__file__).parents[1] / "results" / "soak.json"
_WARM_UP = 2000  # requests before the first look: caches fill, the allocator finds its size
_AT_ONCE = 32
_MIX = ("short", "stream", "tools", "rerun")
_LEFT = (("paced", False), ("paced", True), ("tools", True))  # and whether the first frame is waited for


async def leave(url: str, body: bytes, begun: bool) -> None:
    """Send a request and leave: at once, or when the answer has `begun`."""
    where = urlsplit(url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: soak\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    if begun:
        await reader.readuntil(b"data: ")
    else:
        await writer.drain()
    writer.transport.abort()


async def leave_many(url: str, count: int) -> None:
    """Have `count` clients leave, each place in turn, `_AT_ONCE` at a time."""
    shapes = traffic.shapes()
    for begin in range(0, count, _AT_ONCE):
        chosen = (_LEFT[number % len(_LEFT)] for number in range(begin, min(begin + _AT_ONCE, count)))
        await asyncio.gather(*(leave(url, shapes[name].body, begun) for name, begun in chosen))


def state(running: peers.Running) -> dict[str, float]:
    """Memory in MiB, descriptors, tasks and objects of the gateway's process."""
    process = psutil.Process(running.pid)
    with urllib.request.urlopen(running.url + STATE, data=b"", timeout=30) as response:
        counted = json.load(response)
    return {"rss_mb": round(process.memory_info().rss / 2**20, 1), "descriptors": process.num_fds(), **counted}


async def settled(running: peers.Running, tasks: int) -> dict[str, float]:
    """The state once at most `tasks` tasks are left; after 20 s as it is."""
    for _ in range(40):
        if (seen := state(running))["tasks"] <= tasks:
            break
        await asyncio.sleep(0.5)
    return seen


async def soak(running: peers.Running, requests: int, leaves: int) -> list[dict[str, float]]:
    """The process's state after the warm-up and after every tenth of the work.

    Raises:
        SystemExit: An answer was wrong.
    """
    shapes, answered, left = traffic.shapes(), 0, 0
    idle = int(state(running)["tasks"])
    rows: list[dict[str, float]] = []
    for share in (_WARM_UP, *[requests / 10] * 10):
        until = answered + share
        while answered < until:
            for name in _MIX:
                sample = await load.run(running.url, shapes[name], _AT_ONCE, 0.5)
                if sample.wrong:
                    raise SystemExit(f"{sample.wrong} wrong answers: {sample.seen}")
                answered += len(sample.latency_ms)
        await leave_many(running.url, leaves // 10)
        left += leaves // 10
        rows.append({"answered": answered, "left": left, **await settled(running, idle)})
        print(json.dumps(rows[-1]), flush=True)
    return rows


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--requests", type=int, default=100_000)
    options.add_argument("--leaves", type=int, default=10_000, help="clients that leave")
    options.add_argument("--growth", type=float, default=8.0, help="MiB that memory may grow by after the warm-up")
    given = options.parse_args()
    peers.stop_when_told()
    with runner.upstream() as engine, peers.launched(sides.REPLICA, engine.url, traffic.MODEL) as running:
        rows = uvloop.run(soak(running, given.requests, given.leaves))
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
    grown = {name: round(rows[-1][name] - rows[0][name], 1) for name in rows[0]}
    print(f"grown: {json.dumps(grown)}")
    if grown["rss_mb"] > given.growth or grown["descriptors"] > _AT_ONCE or grown["tasks"] > 0:
        sys.exit("memory, sockets or tasks grew")


if __name__ == "__main__":
    main()
