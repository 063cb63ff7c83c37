"""What a listener does to the process in which it runs."""

import logging
from logging.handlers import MemoryHandler

import fastapi
from support.stack import listening


async def test_handlers_of_the_log_stay_open_when_a_listener_starts() -> None:
    written = logging.NullHandler()
    handler = MemoryHandler(1000, target=written)  # as Ray Serve has one; closing it takes its target away
    async with listening(fastapi.FastAPI()):
        assert handler.target is written
