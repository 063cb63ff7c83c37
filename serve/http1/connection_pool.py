"""The connections to engines that are open: one taken, one left for the next request, one closed."""

import asyncio
import ssl
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import urlsplit

from serve.http1.client import Connection

_KEPT_IDLE_S = 60.0


class ConnectTimeoutError(TimeoutError):
    """Nobody took the connection in time."""


@dataclass(frozen=True, slots=True)
class Target:
    """An engine's URL as a connection needs it.

    Attributes:
        authority: For the Host header.
        prefix: Stands before every path; without a slash at its end.
    """

    host: str
    port: int
    tls: bool
    authority: str
    prefix: str

    @staticmethod
    @lru_cache(maxsize=1024)
    def of(url: str) -> "Target":
        """Split a base URL; `http` and `https`."""
        parts = urlsplit(url)
        tls = parts.scheme == "https"
        authority = parts.netloc.rpartition("@")[2]
        return Target(parts.hostname or "", parts.port or (443 if tls else 80), tls, authority, parts.path.rstrip("/"))


class Connections:
    """Keep-alive connections by target, the last one used first.

    Args:
        connect_timeout_s: Longest wait for a new connection.
        read_timeout_s: Longest silence of an engine that is waited for.
    """

    def __init__(self, connect_timeout_s: float, read_timeout_s: float) -> None:
        self._connect_timeout_s, self._read_timeout_s = connect_timeout_s, read_timeout_s
        self._idle: defaultdict[Target, dict[Connection, asyncio.TimerHandle]] = defaultdict(dict)
        self._tls: ssl.SSLContext | None = None

    def idle(self, target: Target) -> Connection | None:
        """A connection that waits for its next request, or None."""
        waiting = self._idle.get(target)
        if not waiting:
            return None
        connection, expiry = waiting.popitem()
        expiry.cancel()
        return connection

    async def fresh(self, target: Target) -> Connection:
        """A new connection.

        Raises:
            ConnectTimeoutError: Nobody took it in time.
            OSError: Nobody is there, its name is unknown, or its certificate is not right.
        """
        loop = asyncio.get_running_loop()
        waiting = self._idle[target]

        def lost(connection: Connection) -> None:
            if expiry := waiting.pop(connection, None):
                expiry.cancel()

        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, connection = await loop.create_connection(
                    lambda: Connection(self._read_timeout_s, lost),
                    target.host,
                    target.port,
                    ssl=self._context() if target.tls else None,
                )
        except TimeoutError as error:
            raise ConnectTimeoutError(f"no connection within {self._connect_timeout_s:g} s") from error
        return connection

    def leave(self, target: Target, connection: Connection) -> None:
        """Keep it for the next request if it can take one, else close it."""
        if not connection.reusable:
            connection.close()
            return
        connection.rest()
        expiry = asyncio.get_running_loop().call_later(_KEPT_IDLE_S, connection.close)
        self._idle[target][connection] = expiry

    def forget(self, target: Target) -> None:
        """Close a target's connections that wait for their next request."""
        for connection in list(self._idle[target]):
            connection.close()
        self._idle[target].clear()

    def close(self) -> None:
        """Close all that wait for their next request."""
        for target in list(self._idle):
            self.forget(target)

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls
