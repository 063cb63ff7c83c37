"""Runs a gateway whose pools are all remote in this process, without Ray (docs/adr/0101)."""

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import uvloop

from serve.admin.deployment import AdminApi
from serve.config.gateway import REACHED_AT, GatewayConfig
from serve.config.pool import HOSTED
from serve.errors import ConfigError
from serve.gateway.ingress import GatewayReplica
from serve.http1.listener import Listener, url_of
from serve.http1.server import protocol_factory
from serve.launch.supervisor import ask_at_death_of
from serve.shared.link import LocalLink

log = logging.getLogger("ray.serve.specgate.gateway")

_LOOK_S = 0.05
_IN_PLACE = frozenset({"policy"})  # what changes without a restart; keys and advisories are watched anyway


def needs_ray(config: GatewayConfig) -> str | None:
    """Returns what a configuration needs Ray for; None if one process can serve it."""
    own = [f"{model}/{name}" for model, _, name, _ in config.each_pool(*HOSTED)]
    if own:
        return f"engines of its own ({', '.join(own)})"
    return f"{config.replicas} gateway replicas" if config.replicas > 1 else None


@dataclass
class Orders:
    """The operator's requests to a running gateway.

    Attributes:
        drain: Answers under way end, new requests are refused, and then the gateway ends.
        reload: The configuration is read again.
    """

    drain: asyncio.Event = field(default_factory=asyncio.Event)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    reload: asyncio.Event = field(default_factory=asyncio.Event)

    def listen(self) -> None:
        """Takes orders as signals: SIGINT and SIGTERM drain, the second SIGINT stops, SIGHUP reloads.

        On a terminal, SIGHUP says that it is gone, which drains as well. One that is ignored, as under `nohup`, stays
        ignored.
        """
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.drain.set)
        loop.add_signal_handler(signal.SIGINT, self._interrupt)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            loop.add_signal_handler(signal.SIGHUP, (self.drain if os.isatty(0) else self.reload).set)

    def _interrupt(self) -> None:
        (self.stop if self.drain.is_set() else self.drain).set()


class LoneGateway:
    def __init__(self, written: GatewayConfig, replica: GatewayReplica, listener: Listener) -> None:
        self._written = written
        self._replica = replica
        self._listener = listener

    def reload(self, path: Path) -> str:
        """Puts a changed configuration in force, as far as that needs no restart; returns what it did."""
        try:
            config = GatewayConfig.load(path)
        except ConfigError as error:
            return f"refused the new configuration, kept the old one: {error}"
        changed = {name for name in GatewayConfig.model_fields if getattr(config, name) != getattr(self._written, name)}
        if later := sorted(changed - _IN_PLACE):
            return f"kept the old configuration: a change of {', '.join(later)} needs a restart"
        self._replica.reconfigure({"policy": config.policy.model_dump(mode="json"), "version": path.stat().st_mtime_ns})
        if self._replica.updates.refused is not None:
            return f"refused the new policy, kept the old one: {self._replica.updates.refused}"
        self._written = config
        return "adopted the new policy" if changed else "nothing has changed but what was read again"

    async def drain(self, timeout_s: float, stop: asyncio.Event) -> None:
        """Refuses new requests, and returns when those under way have ended."""
        self._replica.allowance.draining = True
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        while self._listener.ongoing and asyncio.get_running_loop().time() < deadline_s and not stop.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await stop.wait()


@asynccontextmanager
async def gateway_alone(
    config: GatewayConfig, host: str, port: int, written: GatewayConfig | None = None
) -> AsyncIterator[LoneGateway]:
    """Serves a gateway, with its admin API, for as long as the context lasts. The pools are all remote. `written` is
    the configuration as its file has it, if the command line has changed it.
    """
    document = config.model_dump(mode="json")
    admin = await AdminApi.started(document)
    try:
        replica = GatewayReplica(document, [], LocalLink(admin))
        try:
            listener = Listener(host, port=port)
        except PermissionError as error:
            raise ConfigError(f"{error}; --port is 1024 or above, unless root starts it") from error
        except OSError as error:
            raise ConfigError(f"{error}; --host is an address of this machine, or 0.0.0.0 for all of them") from error
        await listener.start(replica.app(), protocol_factory(replica.hot, replica.allowance))
        try:
            yield LoneGateway(written or config, replica, listener)
        finally:
            await listener.stop()
    finally:
        await admin.close()


async def serve_alone(
    config: GatewayConfig,
    host: str,
    port: int,
    path: Path | None,
    say: Callable[[str], None],
    orders: Orders,
    written: GatewayConfig | None = None,
) -> None:
    """Serves until the operator says otherwise. Without a path there is no file to read again on demand."""
    async with gateway_alone(config, host, port, written) as gateway:
        say(f"specgate listens on {url_of(host, port)}; models: {', '.join(config.models)}. Press Ctrl-C to stop.")
        say(f"Look at it: {config.admin.url} (the admin API)")
        say(f"Try it: specgate connect curl --url {url_of(REACHED_AT.get(host, host), port)}")
        while not orders.drain.is_set():
            waits = [asyncio.create_task(orders.drain.wait()), asyncio.create_task(orders.reload.wait())]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
            if orders.reload.is_set():
                orders.reload.clear()
                say(gateway.reload(path) if path is not None else "there is no configuration file to read again")
        say("answers under way finish first; Ctrl-C again stops at once")
        await gateway.drain(config.graceful_shutdown_timeout_s, orders.stop)


def run_alone(serve: Callable[[Orders], Awaitable[None]], stop_with_parent: bool) -> None:
    """Serves until a signal says otherwise. With `stop_with_parent`, it stops also when the process that started this
    one dies.
    """

    async def run() -> None:
        orders = Orders()
        orders.listen()
        if stop_with_parent and not ask_at_death_of(os.getppid()):
            orders.drain.set()
        await serve(orders)

    uvloop.run(run())


def log_to_stderr(verbose: bool) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("ray.serve")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO if verbose else logging.WARNING)
    logger.propagate = False
