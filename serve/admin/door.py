"""The operator's door as a Ray Serve deployment: one replica on the head node, with a port of its own."""

import asyncio
import errno
import logging
import time
from pathlib import Path
from typing import Any

from serve.access.principal import everybody
from serve.admin.app import DoorApi
from serve.admin.audit import AuditLog
from serve.admin.replicas import GatewayReplicas
from serve.admin.watch import Watch
from serve.config.admin import AdminConfig
from serve.config.gateway import GatewayConfig
from serve.errors import ConfigError
from serve.http1.listener import Listener
from serve.http1.server import protocol_factory
from serve.routing.endpoint import Endpoint

log = logging.getLogger("ray.serve.specgate.door")

_PORT_TIMEOUT_S = 60.0  # for the door of an older configuration to leave the port


class Door:
    """The deployment.

    Args:
        config: A `GatewayConfig` as a mapping.
    """

    async def __init__(self, config: dict[str, Any]) -> None:  # type: ignore[misc]  # Ray Serve awaits it
        parsed = GatewayConfig.parse(config)
        admin = parsed.admin
        self._replicas = GatewayReplicas()
        self._listener = await _listener(admin)
        audit = AuditLog(Path(admin.audit_dir) if admin.audit_dir else None)
        watch = Watch(self._replicas)
        api = DoorApi(self._replicas, watch, audit, everybody, parsed.limits.max_body_bytes)
        tls = {"ssl_certfile": admin.tls_certfile, "ssl_keyfile": admin.tls_keyfile} if admin.tls_certfile else {}
        await self._listener.start(api.app(), protocol_factory({}), **tls)
        self._watching = asyncio.create_task(watch.run())
        log.info("the operator's door is at %s", admin.url)

    async def announce(self, replica: str, url: str, key: str) -> None:
        """Called by every gateway replica, again and again: where its operators' routes are, and the key to them."""
        self._replicas.announce(replica, Endpoint(url, key))

    async def check_health(self) -> None:
        """Ray Serve's hook: replaces the replica if this raises."""
        self._listener.check()
        if self._watching.done():
            raise RuntimeError("the door has ceased to watch") from self._watching.exception()


async def _listener(admin: AdminConfig) -> Listener:
    """Returns the listener once it has its port.

    Raises:
        ConfigError: The port can't be had.
    """
    deadline_s = time.monotonic() + _PORT_TIMEOUT_S
    while True:
        try:
            return Listener(admin.host, port=admin.port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > deadline_s:
                message = f"the operator's door can't listen on {admin.host} port {admin.port}: {error}"
                raise ConfigError(message) from error
            await asyncio.sleep(0.5)
