"""Simulated engines in a thread of their own, for tests of commands, which have an event loop themselves."""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import uvicorn

from lab.sim.app import build_sim_app
from lab.sim.settings import SimSettings


@contextmanager
def serving(app: Any) -> Iterator[str]:
    """Serves an ASGI app on a free loopback port; yields its base URL."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off", ws="none"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while not server.started:
            thread.join(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def engine(**settings: Any) -> AbstractContextManager[str]:
    """Serves a simulated engine with these settings."""
    return serving(build_sim_app(SimSettings(**settings)))
