"""Time limits for what tasks do, in place of `asyncio.timeout`, which sets a timer for each of them.

By `python -m bench.gateway.in_process --cells short`, a whole answer costs 5 us of 135 more with `asyncio.timeout` on
uvloop (3.5 %, Python 3.11). Nothing else on the request path may cost so much.
"""

import asyncio
from contextlib import AbstractContextManager
from types import TracebackType


class Deadlines:
    """Ends everything that takes longer than a limit.

    All deadlines share one timer: as each is as long as the others, the oldest is the first to pass.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._pending: dict[Deadline, None] = {}  # the oldest first
        self._timer: asyncio.TimerHandle | None = None

    def new(self) -> "Deadline":
        """Returns a deadline, to be entered once by the task that it limits."""
        return Deadline(self)

    def begin(self, deadline: "Deadline") -> None:
        """Counts a deadline's time from now on."""
        loop = asyncio.get_running_loop()
        deadline.ends_s = loop.time() + self._timeout_s
        self._pending[deadline] = None
        if self._timer is None:
            self._timer = loop.call_at(deadline.ends_s, self._check)

    def end(self, deadline: "Deadline") -> None:
        """Forgets a deadline. The timer stays: at the time that was its end, it looks for the next one."""
        self._pending.pop(deadline, None)

    def _check(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        for deadline in list(self._pending):
            if deadline.ends_s > loop.time():
                self._timer = loop.call_at(deadline.ends_s, self._check)
                return
            self.end(deadline)
            deadline.expire()


class Deadline(AbstractContextManager[None]):
    """Cancels its body when the time is up, and then raises `TimeoutError` where the body ends.

    It does for the task that enters it what `asyncio.timeout` does, without a timer of its own, states to be asked for
    and times to be changed. `Deadlines` sets when it ends, by the event loop's clock.
    """

    __slots__ = ("_cancelling", "_deadlines", "_over", "_task", "ends_s")

    def __init__(self, deadlines: Deadlines) -> None:
        self.ends_s = 0.0
        self._deadlines = deadlines
        self._over = False
        self._task: asyncio.Task[object]
        self._cancelling: int

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None  # only a task can be cancelled
        self._task = task
        self._cancelling = task.cancelling()
        self._deadlines.begin(self)

    def expire(self) -> None:
        """Cancels the body."""
        self._over = True
        self._task.cancel()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._deadlines.end(self)
        # If somebody else has cancelled the task as well, it stays cancelled.
        if self._over and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error
