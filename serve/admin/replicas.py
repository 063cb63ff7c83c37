"""The gateway replicas that have announced themselves at the admin API, what they see, and the board made of it."""

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from typing import Any

from serve.admin.board import board
from serve.admin.history import PERIOD_S, History, PoolName
from serve.admin.merged_metrics import figures
from serve.errors import PoolUnavailableError, encode_json
from serve.http1.client import MAX_ANSWER_BYTES, HttpResponse, Origin, fetch
from serve.http1.turns import LONG_BODY_BYTES, beside
from serve.routing.pool import Endpoint

log = logging.getLogger("ray.serve.specgate.admin")

_GONE_S = 10.0  # after its last announcement
_CONNECT_TIMEOUT_S = 2.0
_READ_TIMEOUT_S = 10.0
# Of questions that all processes are asked at once: one that hangs must not keep the others' answers from a page that
# looks every two seconds, or from Prometheus, which gives up after ten.
_LOOK_TIMEOUT_S = 3.0

_WATCHED_PERIOD_S = 1.0  # while somebody looks at the board
_MOST_METRICS_BYTES = 4 * 2**20  # of an engine, ten times as much as one has
_TELLING = frozenset({"vllm", "sglang", "sim"})  # engines that serve metrics beside their API
_WATCHED_FOR_S = 15.0  # after somebody looked

Sights = Mapping[str, Mapping[str, Any]]


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

    async def snapshots(self) -> tuple[dict[str, Any], list[str]]:
        """Returns what each gateway replica sees, and the names of those that do not answer."""
        running = self.running()
        found = await asyncio.gather(*(_snapshot(endpoint) for endpoint in running.values()))
        snapshots = {name: snapshot for name, snapshot in zip(running, found, strict=True) if snapshot is not None}
        return snapshots, [name for name in running if name not in snapshots]


async def ask(
    endpoint: Endpoint,
    method: str,
    path: str,
    body: bytes = b"",
    headers: Iterable[tuple[bytes, bytes]] = (),
    timeout_s: float = _READ_TIMEOUT_S,
    most_bytes: int = MAX_ANSWER_BYTES,
) -> HttpResponse:
    """Sends a request to a replica, with the replica's key, on a connection of its own. The time is for all of the
    answer.

    Raises:
        PoolUnavailableError: It does not answer, or not in time.
    """
    try:
        return await fetch(endpoint.url, endpoint.key, method, path, body, headers, timeout_s, most_bytes)
    except OSError as error:  # TimeoutError is one
        authority = Origin.of(endpoint.url).authority
        raise PoolUnavailableError(f"{authority} does not answer: {error!r}") from error


async def metrics_of(endpoint: Endpoint, most_bytes: int = MAX_ANSWER_BYTES) -> str:
    """Returns a process's metrics; none if it does not answer, so that one process never hides the others, or if they
    are longer than `most_bytes`.
    """
    try:
        answer = await ask(endpoint, "GET", "/metrics", timeout_s=_LOOK_TIMEOUT_S, most_bytes=most_bytes)
    except PoolUnavailableError as error:
        log.info("no metrics: %s", error)
        return ""
    is_whole = answer.status == 200 and len(answer.body) <= most_bytes
    return answer.body.decode(errors="replace") if is_whole else ""


async def reachable(url: str) -> bool:
    """Returns True if somebody listens at an URL's host and port."""
    origin = Origin.of(url)
    try:
        async with asyncio.timeout(_CONNECT_TIMEOUT_S):
            _, writer = await asyncio.open_connection(origin.host, origin.port)
    except OSError:
        return False
    writer.close()
    return True


class Watch:
    """The snapshot of the whole cluster, a second old at most while somebody looks."""

    def __init__(self, replicas: GatewayReplicas) -> None:
        self._replicas = replicas
        self._history = History()
        self._fresh = asyncio.Lock()
        self._board = b"{}"
        self._etag = ""
        self._made_s = float("-inf")
        self._looked_s = float("-inf")
        self._period_began_s = float("-inf")

    async def board(self) -> tuple[bytes, str]:
        """Returns the board as JSON, and its entity tag."""
        self._looked_s = time.monotonic()
        async with self._fresh:
            if time.monotonic() - self._made_s > 2 * _WATCHED_PERIOD_S:
                await self._look()
        return self._board, self._etag

    def series(self, only: PoolName | None) -> dict[str, list[Any]]:
        """Returns the last half hour of one pool, or of all together."""
        return self._history.series(only)

    async def run(self) -> None:
        while True:
            async with self._fresh:
                await self._look()
            watched = time.monotonic() - self._looked_s < _WATCHED_FOR_S
            await asyncio.sleep(_WATCHED_PERIOD_S if watched else PERIOD_S)

    async def _look(self) -> None:
        snapshots, silent = await self._replicas.snapshots()
        now_s = time.monotonic()
        if now_s - self._period_began_s >= PERIOD_S - _WATCHED_PERIOD_S / 2:
            up, told = await asyncio.gather(_reachable(snapshots), _engines(snapshots))
            self._history.add(time.time(), snapshots, told)
            self._period_began_s = now_s
        else:
            up = await _reachable(snapshots)
        self._board = encode_json(board(snapshots, silent, up, self._history))
        self._etag = f'"{sha256(self._board).hexdigest()[:32]}"'
        self._made_s = now_s


async def _snapshot(endpoint: Endpoint) -> dict[str, Any] | None:
    try:
        answer = await ask(endpoint, "GET", "/admin/v1/snapshot", timeout_s=_LOOK_TIMEOUT_S)
    except PoolUnavailableError as error:
        log.info("a gateway replica does not answer: %s", error)
        return None
    snapshot: dict[str, Any] | None = json.loads(answer.body) if answer.status == 200 else None
    return snapshot


async def _engines(snapshots: Sights) -> dict[tuple[PoolName, str], Mapping[str, float]]:
    """Returns what engines say of themselves, by pool and URL: ours, and those of others that are known to tell."""
    asked: dict[tuple[PoolName, str], Endpoint] = {}
    for snapshot in snapshots.values():
        for pool in snapshot["pools"]:
            if pool["kind"] != "remote" or pool.get("facts", {}).get("engine") in _TELLING:
                for engine in pool["engines"]:
                    asked[(pool["model"], pool["pool"]), engine["url"]] = Endpoint(engine["url"], engine["key"])
    told = await asyncio.gather(*map(_figures_of, asked.values()))
    return dict(zip(asked, told, strict=True))


async def _figures_of(endpoint: Endpoint) -> Mapping[str, float]:
    text = await metrics_of(endpoint, _MOST_METRICS_BYTES)
    return await beside(len(text) > LONG_BODY_BYTES, figures, text)


async def _reachable(snapshots: Sights) -> dict[str, bool]:
    urls = list(
        {engine["url"] for snapshot in snapshots.values() for pool in snapshot["pools"] for engine in pool["engines"]}
    )
    return dict(zip(urls, await asyncio.gather(*map(reachable, urls)), strict=True))
