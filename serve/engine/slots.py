"""Releases slots whose holder is gone: Ray Serve never does, so a dead gateway would keep its slots forever.

Every request names its slot. A slot that has had no request for a while is released here; nearly always its holder has
already released it, and then this has no effect.
"""

import asyncio
from collections import Counter
from collections.abc import Callable

import ray

from serve.http1.asgi import AsgiApp, AsgiMessage, Receive, Send
from serve.routing.leases import MAX_AGE_S
from serve.routing.pool import SLOT_HEADER

_HEADER = SLOT_HEADER.encode()


class Slots:
    """ASGI middleware that tracks which slots have requests. A slot may be idle for `after_s`, which must be longer
    than gateways keep an idle slot.
    """

    def __init__(self, app: AsgiApp, release: Callable[[str], None], after_s: float = 2 * MAX_AGE_S) -> None:
        self._app = app
        self._release = release
        self._after_s = after_s
        self._requests: Counter[str] = Counter()  # by slot
        self._timers: dict[str, asyncio.TimerHandle] = {}  # of idle slots

    async def __call__(self, scope: AsgiMessage, receive: Receive, send: Send) -> None:
        slot = _slot_of(scope)
        if not slot:
            await self._app(scope, receive, send)
            return
        self._begin(slot)
        try:
            await self._app(scope, receive, send)
        finally:
            self._end(slot)

    def _begin(self, slot: str) -> None:
        self._requests[slot] += 1
        if timer := self._timers.pop(slot, None):
            timer.cancel()

    def _end(self, slot: str) -> None:
        self._requests[slot] -= 1
        if not self._requests[slot]:
            del self._requests[slot]
            self._timers[slot] = asyncio.get_running_loop().call_later(self._after_s, self._expire, slot)

    def _expire(self, slot: str) -> None:
        del self._timers[slot]
        self._release(slot)


def release_slot(slot: str) -> None:
    """Release a slot of the replica that runs here."""
    # Like the slot's token, this is not public API of Ray Serve; tests/ray/test_slots.py fails if it changes.
    ray.get_runtime_context().current_actor.release_slot.remote(slot)


def _slot_of(scope: AsgiMessage) -> str:
    headers = scope.get("headers", ())  # lifespan scopes have none
    return next((value.decode("latin-1") for name, value in headers if name == _HEADER), "")
