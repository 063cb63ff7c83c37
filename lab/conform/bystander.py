"""Another client, who asks for something small while an attack is under way."""

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

from lab.conform.lab import Lab

_PAUSE_S = 0.02


async def slowest_meanwhile(lab: Lab, attack: Coroutine[Any, Any, Any]) -> tuple[Any, float]:
    """Returns what an attack returned, and the longest wait of a bystander for `GET /health` meanwhile, in seconds.

    Any answer to the bystander is one, so that a gateway without this route can be tested; no answer is infinite.
    """
    task = asyncio.ensure_future(attack)
    slowest = 0.0
    try:
        while True:
            last = task.done()  # asks once more after the attack: it may have ended while the gateway was stuck
            started = time.monotonic()
            reply = await lab.send(None, method="GET", path="/health")
            slowest = max(slowest, time.monotonic() - started if reply.status else float("inf"))
            if last:
                return task.result(), slowest
            await asyncio.sleep(_PAUSE_S)
    finally:
        task.cancel()
