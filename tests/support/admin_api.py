"""A gateway replica and the admin API before it, over real HTTP and without Ray."""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serve.access.key_store import KeyStore
from serve.access.principal import Authenticate, everybody
from serve.admin.app import AdminRoutes
from serve.admin.audit import AuditLog
from serve.admin.replicas import GatewayReplicas, Watch
from serve.gateway.ingress import GatewayReplica
from serve.http1.asgi import AsgiApp
from support.stack import listening

_MAX_BODY_BYTES = 2**20


@dataclass
class Ports:
    """Where the two listen.

    Attributes:
        data: Base URL of the data port.
        admin_api: Base URL of the admin API.
        replicas: Those that the admin API knows.
    """

    data: str
    admin_api: str
    replicas: GatewayReplicas


@asynccontextmanager
async def serving(config: Mapping[str, Any], **how: Any) -> AsyncIterator[Ports]:
    """Runs one gateway replica and an admin API before it.

    Args:
        config: The gateway's.
        how: As of `admin_before`.
    """
    replica = GatewayReplica(dict(config), [])
    async with listening(replica.app(), replica.hot) as data, admin_before(replica.operators_app(), **how) as admin_api:
        yield Ports(data.url, admin_api.admin_api, admin_api.replicas)


@asynccontextmanager
async def admin_before(
    *replicas: AsgiApp,
    authenticate: Authenticate = everybody,
    audit: Path | None = None,
    keys: KeyStore | None = None,
    names: Collection[str] | None = None,
    models: Collection[str] = ("m",),
) -> AsyncIterator[Ports]:
    """Runs an admin API before apps with the operators' routes of gateway replicas.

    Args:
        replicas: The apps.
        authenticate: Says who asks.
        audit: Folder of the audit log.
        keys: The store of keys.
        names: By which the admin API may be asked for.
        models: Those that are served.
    """
    known = GatewayReplicas(lambda: 0.0)
    watch = Watch(known)
    log = AuditLog(audit)
    api = AdminRoutes(known, watch, log, authenticate, _MAX_BODY_BYTES, keys, names, {name: name for name in models})
    async with _all_listening(replicas, known), listening(api.app(), {}) as admin_api:
        watching = asyncio.create_task(watch.run())
        try:
            yield Ports("", admin_api.url, known)
        finally:
            watching.cancel()
            log.close()


@asynccontextmanager
async def _all_listening(apps: tuple[AsgiApp, ...], known: GatewayReplicas) -> AsyncIterator[None]:
    if not apps:
        yield
        return
    async with listening(apps[0]) as endpoint, _all_listening(apps[1:], known):
        known.announce(f"replica-{len(apps)}", endpoint)
        yield
