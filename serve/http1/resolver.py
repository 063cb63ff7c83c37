"""The addresses of hosts, from the system's resolver, which may hang for half a minute.

The event loop would look names up in a few threads that all of a process shares. If those wait for a name server, no
other host is found either, and whatever else works in threads waits as well. So each host has a thread of its own while
it is looked up, at most one, and its addresses of before are good until somebody says otherwise.
"""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from ipaddress import ip_address

_PATIENCE_S = 0.5  # for a host whose addresses of before are known
_MOST_HOSTS = 1024


def look_up(host: str) -> Sequence[str]:
    """Returns the addresses of a host.

    Raises:
        OSError: It has none, or nobody knows.
    """
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(str(address[0]) for *_, address in found))


def has_none(error: OSError) -> bool:
    """Returns whether an error says that a host has no address, rather than that nobody knows."""
    return isinstance(error, socket.gaierror) and error.errno in (socket.EAI_NONAME, socket.EAI_NODATA)


class Addresses:
    """The hosts that a process has asked for. `look_up` is called in a thread, and waited for no longer than
    `patience_s` where there are addresses of before.
    """

    def __init__(self, look_up: Callable[[str], Sequence[str]] = look_up, patience_s: float = _PATIENCE_S) -> None:
        self._look_up = look_up
        self._patience_s = patience_s
        self._under_way: dict[str, tuple[float, Future[Sequence[str]]]] = {}
        self._known: dict[str, Sequence[str]] = {}

    async def of(self, host: str) -> Sequence[str]:
        """Returns the addresses of a host, of which there is at least one: those of before if nobody answers in time.

        An address is its own.

        Raises:
            OSError: It has none, or nobody knows.
        """
        if is_address(host):
            return (host,)
        known = self._known.get(host)
        began_s, lookup = self._under_way.get(host) or self._begin(host)
        if known is not None and time.monotonic() - began_s > self._patience_s:
            return known  # somebody has waited already
        found = asyncio.wrap_future(lookup)
        try:
            # Shielded, for others may wait for it too.
            async with asyncio.timeout(None if known is None else self._patience_s):
                return await asyncio.shield(found)
        except socket.gaierror as error:
            if known is None or error.errno != socket.EAI_AGAIN:
                raise
        except TimeoutError:
            if known is None:
                raise
        return known

    def _begin(self, host: str) -> "tuple[float, Future[Sequence[str]]]":
        lookup: Future[Sequence[str]] = Future()
        self._under_way[host] = begun = time.monotonic(), lookup
        # A daemon, so that no name server keeps the process from ending.
        threading.Thread(target=self._resolve, args=(host, lookup), name=f"resolve {host}", daemon=True).start()
        return begun

    def _resolve(self, host: str, lookup: "Future[Sequence[str]]") -> None:
        try:
            found = self._look_up(host)
        except Exception as error:  # noqa: BLE001 - whoever waits for it gets it
            del self._under_way[host]
            lookup.set_exception(error)
            return
        if len(self._known) >= _MOST_HOSTS:
            self._known.clear()
        self._known[host] = found
        del self._under_way[host]
        lookup.set_result(found)


ADDRESSES = Addresses()  # the resolver is the process's, too


def is_address(host: str) -> bool:
    """Returns True for an IP address, as opposed to a name."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
