"""`python -m bench.gateway.leavers`: clients that leave give their slots back, on Ray Serve.

All of specgate with one simulated engine of few slots. Clients leave while they wait for a slot, in prefill and in the
middle of a stream; then as many streams as there are slots must run at the same time, and one more must wait.
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
_SOON_S = 3.0  # within which a stream begins that has a slot
_PATIENCE_S = 60.0  # for the slots of the last leavers to come back
# Long enough that none of the last streams ends before all have begun.
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
    where = urlsplit(url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: slots\r\ncontent-length: %d\r\n\r\n" % len(_BODY))
    writer.write(_BODY)
    await writer.drain()
    return reader, writer


async def leave(url: str, patience_s: float) -> bool:
    """Send a request and leave after so long; whether its stream had begun."""
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
    """Have clients leave, then count the slots that are free."""
    began, begun, gone = time.perf_counter(), 0, 0
    while gone < leaves:
        patience = [0.002 * 2 ** (number % 8) for number in range(_AT_ONCE)]  # 2 to 256 ms
        begun += sum(await asyncio.gather(*(leave(url, each) for each in patience)))
        gone += _AT_ONCE
    found = {"left": gone, "of_begun_streams": begun, "seconds": round(time.perf_counter() - began, 1), "slots": SLOTS}
    began = time.perf_counter()
    free, one_more = await usable(url)
    while free < SLOTS and time.perf_counter() - began < _PATIENCE_S:
        free, one_more = await usable(url)
        print(f"{free} of {SLOTS} after {time.perf_counter() - began:.1f} s", flush=True)
    return found | {"usable": free, "one_more": one_more, "after_s": round(time.perf_counter() - began, 1)}


async def usable(url: str) -> tuple[int, int]:
    """How many of as many streams as there are slots begin, and whether one more does."""
    held = [await ask(url) for _ in range(SLOTS)]
    begun = sum(await asyncio.gather(*(_begins(reader, _SOON_S) for reader, _ in held)))
    reader, writer = await ask(url)
    more = await _begins(reader, _SOON_S)
    for _, each in (*held, (reader, writer)):
        each.transport.abort()
    return begun, int(more)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--leaves", type=int, default=10_000, help="clients that leave")
    given = options.parse_args()
    peers.stop_when_told()
    side = dataclasses.replace(peers.SPECGATE, name="specgate with few slots", config=_CONFIG)
    with peers.launched(side, "", _MODEL) as running:
        found = asyncio.run(check(running.url, given.leaves))
    print(json.dumps(found))
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    if found["usable"] != SLOTS or found["one_more"]:
        sys.exit(f"{SLOTS} slots, of which {found['usable']:g} can be used")


if __name__ == "__main__":
    main()
