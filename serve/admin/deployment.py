"""The admin API as a Ray Serve deployment: one replica on the head node, with a port of its own."""

import asyncio
import errno
import logging
import time
from pathlib import Path
from typing import Any, Self

from serve.access.key_record import KeyChanges
from serve.access.key_store import open_store
from serve.access.live import LiveAccess, OpenAccess
from serve.admin.app import AdminRoutes
from serve.admin.audit import AuditLog
from serve.admin.replicas import GatewayReplicas, Watch
from serve.config.gateway import AdminConfig, GatewayConfig
from serve.errors import ConfigError, SharedStateError
from serve.http1.listener import Listener, check_certificate
from serve.http1.server import protocol_factory
from serve.routing.pool import Endpoint
from serve.shared.link import LocalLink

log = logging.getLogger("ray.serve.specgate.admin")

_RENEW_S = 60.0
_PORT_TIMEOUT_S = 60.0  # for the admin API of an older configuration to leave the port


class AdminApi:
    async def __init__(self, config: dict[str, Any]) -> None:  # type: ignore[misc]  # Ray Serve awaits it
        parsed = GatewayConfig.parse(config)
        admin = parsed.admin
        files = (admin.tls_certfile, admin.tls_keyfile) if admin.tls_certfile and admin.tls_keyfile else None
        if files is not None:
            _check(*files)
        self._replicas = GatewayReplicas()
        self._listener = await _listener(admin)
        audit_dir = Path(admin.audit_dir) if admin.audit_dir else None
        self._audit = audit = AuditLog(audit_dir, key_file=admin.audit_key(parsed.access.state_dir))
        watch = Watch(self._replicas)
        self._store = store = open_store(Path(parsed.access.state_dir), mends=True) if parsed.access.state_dir else None
        keyed = parsed.access.mode == "required"
        access = LiveAccess(parsed.access, LocalLink(store) if store else None) if keyed else OpenAccess()
        names = None if keyed else (admin.host.lower(), *admin.names)  # with keys, a page lacks one
        most = parsed.limits.max_body_bytes
        models = dict(parsed.each_name())
        api = AdminRoutes(self._replicas, watch, audit, access.authenticate, most, store, names, models)
        tls = dict(zip(("ssl_certfile", "ssl_keyfile"), files or (), strict=False))
        await self._listener.start(api.app(), protocol_factory({}), **tls)
        tasks = [watch.run(), access.run(), api.run(), *([_renew(self._listener, *files)] if files else [])]
        self._running = [asyncio.create_task(each) for each in tasks]
        log.info("the admin API is at %s", admin.url)

    @classmethod
    async def started(cls, config: dict[str, Any]) -> Self:
        """Returns the admin API of a gateway without Ray, once it listens."""
        self = cls.__new__(cls)
        await self.__init__(config)  # type: ignore[misc]
        return self

    async def announce(self, replica: str, url: str, key: str) -> None:
        """Called by every gateway replica, again and again: where its operators' routes are, and the key to them."""
        self._replicas.announce(replica, Endpoint(url, key))

    async def sync_keys(self, version: int, used: frozenset[str]) -> KeyChanges:
        """Called by every gateway replica over and over; see `KeyStore.sync_keys`.

        Raises:
            SharedStateError: There is no store.
        """
        if self._store is None:
            raise SharedStateError("The admin API has no store of keys.")
        return await self._store.sync_keys(version, used)

    async def close(self) -> None:
        """Ends an admin API without Ray."""
        for task in self._running:
            task.cancel()
        await asyncio.wait(self._running)
        await self._listener.stop()
        if self._store is not None:
            self._store.close()
        self._audit.close()

    async def check_health(self) -> None:
        """Ray Serve's hook: replaces the replica if this raises."""
        self._listener.check()
        for task in self._running:
            if task.done() and (error := task.exception()) is not None:  # what is off has nothing to run, and ends
                raise RuntimeError("a task of the admin API has failed") from error


def _check(certfile: str, keyfile: str) -> None:
    try:
        check_certificate(certfile, keyfile)
    except OSError as error:
        raise ConfigError(f"admin.tls_certfile {certfile} with tls_keyfile {keyfile} can't be used: {error}") from error


async def _renew(listener: Listener, certfile: str, keyfile: str) -> None:
    """Takes a renewed certificate. A bad one changes nothing, nor does one whose key is yet to come."""
    refused = ""
    while True:
        await asyncio.sleep(_RENEW_S)
        try:
            listener.renew(certfile, keyfile)
            refused = ""
        except OSError as error:
            if str(error) != refused:
                log.warning("the admin API goes on with its old certificate: %s can't be used: %s", certfile, error)
            refused = str(error)


async def _listener(admin: AdminConfig) -> Listener:
    """Returns the listener once it has its port."""
    deadline_s = time.monotonic() + _PORT_TIMEOUT_S
    while True:
        try:
            return Listener(admin.host, port=admin.port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > deadline_s:
                message = f"the admin API can't listen on {admin.host} port {admin.port}: {error}"
                raise ConfigError(message) from error
            await asyncio.sleep(0.5)
