"""The parts of a gateway replica: what each feature does beside the requests."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import fastapi

log = logging.getLogger("ray.serve.specgate.gateway")

STOP_S = 5.0
AGAIN_S = 1.0  # after which what has failed begins again; twice as long after each further failure
_MOST_AGAIN_S = 30.0


async def _nothing() -> None:
    """Does nothing."""


@dataclass(frozen=True, slots=True)
class Part:
    """One feature of a gateway replica; without arguments, one that is off.

    Attributes:
        name: As metrics and logs call it.
        run: Works for as long as the replica serves; it is cancelled then. If it fails, it is called again.
        routes: Those of the admin API.
        close: Ends the feature, once nothing of any part runs.
    """

    name: str = ""
    run: Callable[[], Coroutine[Any, Any, None]] = _nothing
    routes: fastapi.APIRouter = field(default_factory=fastapi.APIRouter)
    close: Callable[[], Awaitable[None]] = _nothing


OFF = Part()


@asynccontextmanager
async def running(parts: Sequence[Part], failed: Callable[[str], None] = lambda _: None) -> AsyncIterator[None]:
    """Runs parts for as long as the context lasts, and then closes all of them, the last one first.

    A part whose `run` fails is logged and begins again; the others, and the requests, go on.

    Args:
        parts: The parts.
        failed: Told the name of each that failed.
    """
    async with AsyncExitStack() as closing:
        for part in parts:
            closing.push_async_callback(part.close)
        tasks = [asyncio.create_task(_keep_running(part, failed)) for part in parts]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=STOP_S)  # one may be in the midst of a report


async def _keep_running(part: Part, failed: Callable[[str], None]) -> None:
    """Runs a part until it ends by itself, which only one does that has nothing to run."""
    again_s = AGAIN_S
    while True:
        begun_s = time.monotonic()
        try:
            await part.run()
        except Exception as error:  # whatever it is, what the part does must not stay undone
            if time.monotonic() - begun_s > _MOST_AGAIN_S:
                again_s = AGAIN_S
            message = "a background task of this replica has ended, and begins again in %.0f s: %s"
            log.error(message, again_s, part.name, exc_info=error)
            failed(part.name)
            await asyncio.sleep(again_s)
            again_s = min(2 * again_s, _MOST_AGAIN_S)
        else:
            return
