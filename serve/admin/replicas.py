"""The gateway replicas that have announced themselves at the admin API, and HTTP to them and to engines."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from urllib.parse import urlsplit

from serve.errors import PoolUnavailableError
from serve.http1.connection_pool import Origin
from serve.http1.fetch import HttpResponse, fetch
from serve.routing.endpoint import Endpoint

log = logging.getLogger("ray.serve.specgate.admin")

_GONE_S = 10.0  # after its last announcement
_CONNECT_TIMEOUT_S = 2.0
_READ_TIMEOUT_S = 10.0
# Of questions that all processes are asked at once: one that hangs must not keep the others' answers from a page that
# looks every two seconds, or from Prometheus, which gives up after ten.
LOOK_TIMEOUT_S = 3.0


class GatewayReplicas:
    """The addresses of the gateway replicas that run."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._announced: dict[str, tuple[Endpoint, float]] = {}

    def announce(self, replica: str, endpoint: Endpoint) -> None:
        """Remembers where a replica listens, for some seconds."""
        self._announced[replica] = endpoint, self._clock()

    def forget(self, replica: str) -> None:
        """Forgets a replica that does not answer, until it announces itself again."""
        self._announced.pop(replica, None)

    def running(self) -> dict[str, Endpoint]:
        """Returns the replicas that reported lately, by name."""
        now = self._clock()
        self._announced = {name: each for name, each in self._announced.items() if now - each[1] <= _GONE_S}
        return {name: endpoint for name, (endpoint, _) in sorted(self._announced.items())}


async def ask(
    endpoint: Endpoint,
    method: str,
    path: str,
    body: bytes = b"",
    headers: Iterable[tuple[bytes, bytes]] = (),
    timeout_s: float = _READ_TIMEOUT_S,
) -> HttpResponse:
    """Sends a request to a replica, with the replica's key, on a connection of its own. The time is for all of the
    answer.

    Raises:
        PoolUnavailableError: It does not answer, or not in time.
    """
    try:
        return await fetch(endpoint.url, endpoint.key, method, path, body, headers, timeout_s)
    except OSError as error:  # TimeoutError is one
        authority = Origin.of(endpoint.url).authority
        raise PoolUnavailableError(f"{authority} does not answer: {error!r}") from error


async def metrics_of(endpoint: Endpoint) -> str:
    """Returns a process's metrics; none if it does not answer, so that one process never hides the others."""
    try:
        answer = await ask(endpoint, "GET", "/metrics", timeout_s=LOOK_TIMEOUT_S)
    except PoolUnavailableError as error:
        log.info("no metrics: %s", error)
        return ""
    return answer.body.decode(errors="replace") if answer.status == 200 else ""


async def reachable(url: str) -> bool:
    """Returns True if somebody listens at an URL's host and port."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        async with asyncio.timeout(_CONNECT_TIMEOUT_S):
            _, writer = await asyncio.open_connection(parts.hostname, port)
    except OSError:
        return False
    writer.close()
    return True
