"""The open connections to engines: one is taken for a request, and released for the next one or closed."""

import asyncio
import ssl
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import urlsplit

from serve.http1.client import ClientConnection
from serve.http1.resolver import ADDRESSES


class ConnectTimeoutError(TimeoutError):
    """Nobody accepted the connection in time."""


class Origin(NamedTuple):
    """An engine's base URL, split as a connection needs it.

    Attributes:
        authority: For the Host header.
        prefix: Precedes every path; without a slash at its end.
    """

    host: str
    port: int
    tls: bool
    authority: str
    prefix: str

    @staticmethod
    @lru_cache(maxsize=1024)
    def of(url: str) -> "Origin":
        """Splits a base URL, `http` or `https`."""
        parts = urlsplit(url)
        tls = parts.scheme == "https"
        authority = parts.netloc.rpartition("@")[2]
        return Origin(parts.hostname or "", parts.port or (443 if tls else 80), tls, authority, parts.path.rstrip("/"))


class ConnectionPool:
    """Keep-alive connections by origin. The one used last is used first. `authorities` is a file with the certificates
    that are trusted, in place of the system's.
    """

    def __init__(self, connect_timeout_s: float, read_timeout_s: float, authorities: str | None = None) -> None:
        self._connect_timeout_s = connect_timeout_s
        self._read_timeout_s = read_timeout_s
        self._idle: defaultdict[Origin, dict[ClientConnection, None]] = defaultdict(dict)
        self._authorities = authorities
        self._tls: ssl.SSLContext | None = None

    def take_idle(self, origin: Origin) -> ClientConnection | None:
        """Returns an idle connection, or None if there is none. Closes those on which an engine has said something."""
        idle = self._idle.get(origin)
        while idle:
            connection, _ = idle.popitem()
            if connection.quiet:
                return connection
            connection.close()
        return None

    async def connect(self, origin: Origin) -> ClientConnection:
        """Opens a connection.

        Raises:
            ConnectTimeoutError: Nobody accepted it in time.
            OSError: Nobody listens there, the name is unknown, or the certificate is not valid.
        """
        idle = self._idle[origin]

        def on_lost(connection: ClientConnection) -> None:
            idle.pop(connection, None)

        try:
            async with asyncio.timeout(self._connect_timeout_s):
                *others, last = await ADDRESSES.of(origin.host)
                for address in others:
                    with suppress(OSError):  # refused, or on a network without a way there; the next one may answer
                        return await self._connect_to(address, origin, on_lost)
                return await self._connect_to(last, origin, on_lost)
        except TimeoutError as error:
            raise ConnectTimeoutError(f"no connection within {self._connect_timeout_s:g} s") from error

    async def _connect_to(
        self, address: str, origin: Origin, on_lost: Callable[[ClientConnection], None]
    ) -> ClientConnection:
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: ClientConnection(self._read_timeout_s, on_lost),
            address,
            origin.port,
            ssl=self._context() if origin.tls else None,
            server_hostname=origin.host if origin.tls else None,
        )
        return connection

    def release(self, origin: Origin, connection: ClientConnection) -> None:
        """Keeps a connection for the next request if it is reusable, else closes it."""
        if not connection.reusable:
            connection.close()
            return
        connection.finish()
        self._idle[origin][connection] = None

    def close_idle(self, origin: Origin) -> None:
        for connection in list(self._idle[origin]):
            connection.close()
        self._idle[origin].clear()

    def close(self) -> None:
        """Closes all idle connections."""
        for origin in list(self._idle):
            self.close_idle(origin)

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context(cafile=self._authorities)
            if self._authorities is not None:  # clusters make such certificates, and not always by the letter
                self._tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
        return self._tls
