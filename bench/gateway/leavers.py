"""Checks that clients that disconnect free their slots, on Ray Serve: `python -m bench.gateway.leavers`.

Runs all of specgate with one simulated engine that has few slots. Clients disconnect while they wait for a slot, during
prefill and in mid-stream. Afterwards as many streams as there are slots must run at the same time, and one more must
wait.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

from bench import peers

RESULTS = Path(__file__).parents[1] / "results" / "leavers.json"
SLOTS = 8
_AT_ONCE = 4 * SLOTS
_MODEL = "slots"
_SOON_S = 3.0  # a stream that has a slot begins within this time
_PATIENCE_S = 60.0  # longest wait for the slots of the last disconnected clients
# Streams are long enough that none of the last ones ends before all have begun.
_CONFIG = f"""
models:
  {{model}}:
    family: sim
    grammar: hermes
    pools:
      standard:
        kind: sim
        sim: {{{{ step_ms: 20, prefill_ms: 30, content_tokens: [500, 500] }}}}
        max_ongoing_requests: {SLOTS}
        facts: {{{{ engine_version: "0" }}}}
        ray_actor_options: {{{{ num_cpus: 0.25 }}}}
"""
_BODY = json.dumps({"model": _MODEL, "messages": [{"role": "user", "content": "on and on"}], "stream": True}).encode()


async def ask(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a request for a long stream."""
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: slots\r\ncontent-type: application/json\r\n"
    writer.write(head + b"content-length: %d\r\n\r\n" % len(_BODY))
    writer.write(_BODY)
    await writer.drain()
    return reader, writer


async def leave(url: str, patience_s: float) -> bool:
    """Send a request and disconnect after `patience_s`; returns True if its stream had begun."""
    reader, writer = await ask(url)
    begun = await _begins(reader, patience_s)
    writer.transport.abort()
    return begun


async def _begins(reader: asyncio.StreamReader, patience_s: float) -> bool:
    try:
        await asyncio.wait_for(reader.readuntil(b"data: "), patience_s)
    except (TimeoutError, asyncio.IncompleteReadError, ConnectionError):
        return False
    return True


async def check(url: str, leaves: int) -> dict[str, float]:
    """Have clients disconnect, then count the free slots."""
    began = time.perf_counter()
    begun = 0
    gone = 0
    while gone < leaves:
        patiences_s = [0.002 * 2 ** (number % 8) for number in range(_AT_ONCE)]  # 2 to 256 ms
        begun += sum(await asyncio.gather(*(leave(url, patience_s) for patience_s in patiences_s)))
        gone += _AT_ONCE
    counts = {"left": gone, "of_begun_streams": begun, "seconds": round(time.perf_counter() - began, 1), "slots": SLOTS}
    began = time.perf_counter()
    free, one_more = await usable(url)
    while free < SLOTS and time.perf_counter() - began < _PATIENCE_S:
        free, one_more = await usable(url)
        print(f"{free} of {SLOTS} after {time.perf_counter() - began:.1f} s", flush=True)
    return counts | {"usable": free, "one_more": one_more, "after_s": round(time.perf_counter() - began, 1)}


async def usable(url: str) -> tuple[int, int]:
    """Start one stream per slot, then one more; returns how many of the former and of the latter begin."""
    streams = [await ask(url) for _ in range(SLOTS)]
    begun = sum(await asyncio.gather(*(_begins(reader, _SOON_S) for reader, _ in streams)))
    reader, writer = await ask(url)
    more = await _begins(reader, _SOON_S)
    for _, stream_writer in (*streams, (reader, writer)):
        stream_writer.transport.abort()
    return begun, int(more)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--leaves", type=int, default=10_000, help="clients that disconnect")
    given = options.parse_args()
    peers.stop_when_told()
    side = dataclasses.replace(peers.SPECGATE, name="specgate with few slots", config=_CONFIG)
    with peers.launched(side, "", _MODEL) as running:
        counts = asyncio.run(check(running.url, given.leaves))
    print(json.dumps(counts))
    RESULTS.write_text(json.dumps(counts, indent=1) + "\n")
    if counts["usable"] != SLOTS or counts["one_more"]:
        sys.exit(f"{counts['usable']:g} of {SLOTS} slots are usable, and {counts['one_more']:g} more stream began")


if __name__ == "__main__":
    main()
