"""One gateway replica's side of the admin API: a port for the admin API alone, and its address at the admin API."""

import asyncio
import logging
import secrets
from typing import Any, cast

import fastapi

from serve.errors import SharedStateError
from serve.http1.listener import AllowedRoutes, Listener, node_address
from serve.http1.server import protocol_factory
from serve.shared.link import Link

log = logging.getLogger("ray.serve.specgate.gateway")

PERIOD_S = 2.0


async def announce(admin_api: Link, replica: str, app: fastapi.FastAPI) -> None:
    """Serves the operators' routes of one replica to whoever has its key, and tells the admin API address and key, for
    ever.

    HAProxy does not know the port. The key travels through Ray's own channel between deployments, or not at all.
    """
    listener = Listener(node_address(), secrets.token_urlsafe(24))
    keyed = AllowedRoutes(app, listener.key, listed_routes(app))
    await listener.start(keyed, protocol_factory({}))  # not the one with the completions before it
    lost = False
    try:
        while True:
            try:
                await admin_api.call("announce", replica, listener.url, listener.key)
                lost = False
            except SharedStateError as error:
                if not lost:
                    log.warning("%s", error)
                lost = True
            await asyncio.sleep(PERIOD_S)
    finally:
        await listener.stop()


def listed_routes(app: fastapi.FastAPI | fastapi.APIRouter) -> set[tuple[str, str]]:
    """Returns the methods and paths of an app without path parameters."""
    listed: set[tuple[str, str]] = set()
    for route in cast("list[Any]", app.routes):
        included = getattr(route, "original_router", None)  # newer releases of FastAPI keep routers as they are
        paths = ((method, route.path) for method in getattr(route, "methods", None) or ())
        listed.update(paths if included is None else listed_routes(included))
    return listed
