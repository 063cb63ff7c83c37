"""The parts of a gateway replica: what each feature does beside the requests."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import fastapi

log = logging.getLogger("ray.serve.specgate.gateway")

STOP_S = 5.0


async def _nothing() -> None:
    """Does nothing."""


@dataclass(frozen=True, slots=True)
class Part:
    """One feature of a gateway replica; without arguments, one that is off.

    Attributes:
        run: Works for as long as the replica serves; it is cancelled then.
        routes: Those of the admin API.
        close: Ends the feature, once nothing of any part runs.
    """

    run: Callable[[], Coroutine[Any, Any, None]] = _nothing
    routes: fastapi.APIRouter = field(default_factory=fastapi.APIRouter)
    close: Callable[[], Awaitable[None]] = _nothing


OFF = Part()


@asynccontextmanager
async def running(parts: Sequence[Part]) -> AsyncIterator[None]:
    """Runs parts for as long as the context lasts, and then closes all of them, the last one first.

    A part whose `run` fails is logged; the others, and the requests, go on.
    """
    async with AsyncExitStack() as closing:
        for part in parts:
            closing.push_async_callback(part.close)
        tasks = [asyncio.create_task(part.run()) for part in parts]
        for task in tasks:
            task.add_done_callback(_log_failure)
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=STOP_S)  # one may be in the midst of a report


def _log_failure(task: asyncio.Task[None]) -> None:
    """Logs the end of a task that should run for ever."""
    if not task.cancelled() and (error := task.exception()):
        log.error("a background task of this replica has ended", exc_info=error)
