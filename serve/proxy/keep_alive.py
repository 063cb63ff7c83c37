"""Keeps a stream alive while nothing of it goes out: agents, and the proxies before us, give up one that is silent.

`Exchange.keep_alive_from_now` begins it, `KeepAlive` sees when nothing has gone out for long, whatever comes in, and
`show_life` of the client's API sends something then.

- **Messages, Responses**: from where the request is decoded (`serve/dialects/api.py`), since their streams can say any
  error. It begins the stream, or else sends an event that says nothing: some agents do not count comments.
- **Chat under the guard**, which holds calls: a comment, from where an engine has begun to answer
  (`serve/guard/response.py`). Before that an error is still a status, and another pool may answer (docs/adr/0090).
- **Other chat and text completions**: never. They go from socket to socket, and nobody knows whether they stand between
  two events or within one, where nothing may be sent. If they are silent, so is their engine; vLLM has
  `--sse-keep-alive-interval`.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

PERIOD_S = 5.0  # a stream is silent for no longer than twice this


class KeepAlive:
    """Looks again and again whether anything was sent: with a timer, because a task costs what ten tokens do.

    Args:
        show_life: Sends what says nothing.

    Attributes:
        silent: Nothing was sent since it last looked; whoever sends sets it to False.
        within: Events are being made, or sent in pieces: nothing may be sent between them.
    """

    def __init__(self, show_life: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.silent = True
        self.within = False
        self._show_life: Callable[[], Coroutine[Any, Any, None]] | None = show_life
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
        self._show_life = None

    def _look(self) -> None:
        reads = self._sending is None or self._sending.done()  # else the client itself reads nothing
        if self.silent and not self.within and reads and self._show_life is not None:
            self._sending = asyncio.create_task(self._show_life())
        self.watch()
