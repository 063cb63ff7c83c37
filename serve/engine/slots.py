"""Slots whose holder is gone: Ray Serve never gives them back by itself, a gateway that died would keep them for ever.

Every request names the slot that it is in. A slot without a request for a while is released here; if its holder has
done so, as nearly always, that changes nothing.
"""

import asyncio
from collections import Counter
from collections.abc import Callable

import ray

from serve.http1.asgi import AsgiApp, AsgiMessage, Receive, Send
from serve.routing.endpoint import SLOT_HEADER
from serve.routing.leases import MAX_AGE_S

_HEADER = SLOT_HEADER.encode()


class Slots:
    """An ASGI app around an engine's, which keeps account of the slots.

    Args:
        app: The engine's.
        release: Releases a slot of this replica by its token.
        after_s: How long a slot may be without a request; longer than gateways let one lie idle.
    """

    def __init__(self, app: AsgiApp, release: Callable[[str], None], after_s: float = 2 * MAX_AGE_S) -> None:
        self._app, self._release, self._after_s = app, release, after_s
        self._open: Counter[str] = Counter()
        self._clocks: dict[str, asyncio.TimerHandle] = {}

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
        self._open[slot] += 1
        if clock := self._clocks.pop(slot, None):
            clock.cancel()

    def _end(self, slot: str) -> None:
        self._open[slot] -= 1
        if not self._open[slot]:
            del self._open[slot]
            self._clocks[slot] = asyncio.get_running_loop().call_later(self._after_s, self._give_back, slot)

    def _give_back(self, slot: str) -> None:
        del self._clocks[slot]
        self._release(slot)


def release_slot(slot: str) -> None:
    """Release a slot of the replica that runs here."""
    # Not of Ray Serve's public interface, as little as the token; tests/ray/test_slots.py notices if it changes.
    ray.get_runtime_context().current_actor.release_slot.remote(slot)


def _slot_of(scope: AsgiMessage) -> str:
    headers = scope.get("headers", ())  # none in the messages of the app's own life
    return next((value.decode("latin-1") for name, value in headers if name == _HEADER), "")
