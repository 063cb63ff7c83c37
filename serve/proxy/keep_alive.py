"""Keeps a stream alive while its engine says nothing.

Agents give up a stream that is silent for long, and comments do not count for all of them.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

PERIOD_S = 5.0  # a stream is silent for no longer than twice this


class KeepAlive:
    """Looks again and again whether anything was sent: with a timer, because a task costs what ten tokens do.

    Args:
        send: Sends an event that says nothing.

    Attributes:
        silent: Nothing was sent since it last looked; whoever sends sets it to False.
        within: An event is being sent in pieces, between which nothing may stand.
    """

    def __init__(self, send: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.silent = True
        self.within = False
        self._send: Callable[[], Coroutine[Any, Any, None]] | None = send
        self._sending: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """Begins to look."""
        self.silent = True
        self._timer = asyncio.get_running_loop().call_later(PERIOD_S, self._look)

    def stop(self) -> None:
        """Looks and sends no more, and forgets how."""
        for each in (self._timer, self._sending):
            if each is not None:
                each.cancel()
        self._timer = self._sending = None
        self._send = None

    def _look(self) -> None:
        reads = self._sending is None or self._sending.done()  # else the client itself reads nothing
        if self.silent and not self.within and reads and self._send is not None:
            self._sending = asyncio.create_task(self._send())
        self.watch()
