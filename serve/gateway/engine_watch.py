"""Watches the engines behind remote pools: one that was restarted, or is another one, is not trusted unasked."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from serve.config.gateway import GatewayConfig
from serve.config.pool import PoolConfig
from serve.discovery.asking import LATE, ask_metrics, ask_passively, why_no_answer
from serve.discovery.endpoint_slices import endpoints_of
from serve.discovery.identity import PERIOD_S, EngineIdentity, agreed
from serve.discovery.reading import EngineAnswer, EngineMetrics, engine_metrics, read
from serve.gateway.pools import PoolKey
from serve.http1.client import Origin
from serve.http1.listener import url_of
from serve.http1.resolver import ADDRESSES, has_none
from serve.http1.turns import LONG_BODY_BYTES, beside
from serve.routing.pool import Endpoint, Pool
from serve.routing.remote_pool import RemotePool
from serve.telemetry.metrics import Metrics

log = logging.getLogger("ray.serve.specgate.gateway")

_LATE_TWICE = 2
_OWN_FAILURE = 500  # a server's own: its metrics alone may fail, and the engine serve; above, a proxy misses the engine

Learn = Callable[[Mapping[PoolKey, dict[str, Any]]], None]


LookUp = Callable[[], Awaitable[list[str]]]


def look_up_of(pool: PoolConfig) -> LookUp | None:
    """Returns what tells the addresses that a pool has now; None if they never change."""
    if pool.endpoints is not None:
        return partial(endpoints_of, pool.endpoints)
    return partial(all_addresses_of, pool.addresses) if pool.resolve else None


async def all_addresses_of(urls: Sequence[str]) -> list[str]:
    """Returns the URLs of all addresses that the hosts of URLs have.

    Raises:
        OSError: One has none, or nobody knows.
    """
    return [url for each in await asyncio.gather(*map(addresses_of, urls)) for url in each]


async def addresses_of(url: str) -> list[str]:
    """Returns the URLs of all addresses that the host of a URL has.

    Raises:
        OSError: It has none, or nobody knows.
    """
    origin = Origin.of(url)
    return [f"{url_of(host, origin.port)}{origin.prefix}" for host in await ADDRESSES.of(origin.host)]


class PoolWatch:
    """Watches one remote pool, of which some facts are stated. `adopt` takes those that hold now, `changed` is called
    when an engine is another one than before, and `look_up` tells the pool's addresses; None if they never change.
    """

    def __init__(
        self,
        label: str,
        pool: RemotePool,
        stated: Mapping[str, Any],
        adopt: Callable[[Mapping[str, Any]], None],
        changed: Callable[[], None],
        look_up: LookUp | None = None,
    ) -> None:
        self._label = label
        self._pool = pool
        self._stated = self._facts = stated
        self._adopt = adopt
        self._changed = changed
        self._look_up = look_up
        self._unheard = ""
        self._is_unlisted = False
        self._identities = {endpoint.url: EngineIdentity(stated) for endpoint in pool.addresses}
        self._late = Counter[str]()
        self._silent = set[str]()
        self._look_now = asyncio.Event()
        pool.on_silence = self._on_silence
        pool.silent = self._silent

    async def run(self) -> None:
        """Looks for ever."""
        while True:
            self._look_now.clear()  # before the look: what it asks already may fall silent while it lasts
            try:
                await self.look()
            except Exception:  # whatever an engine sends, the others are watched on
                log.exception("%s: the look at its engines failed", self._label)
            with suppress(TimeoutError):
                period_s = min((each.look_again_s for each in self._identities.values()), default=PERIOD_S)
                period_s = min(period_s, PERIOD_S) if self._silent else period_s
                async with asyncio.timeout(period_s):
                    await self._look_now.wait()

    async def look(self) -> None:
        """Looks at all engines once."""
        if self._look_up is not None:
            await self._take_addresses(self._look_up)
        endpoints = self._pool.addresses
        answers = await asyncio.gather(*(ask_metrics(endpoint.url, endpoint.key) for endpoint in endpoints))
        told = [await beside(len(each.body) > LONG_BODY_BYTES, _metrics_in, each) for each in answers]
        each_told = zip(endpoints, answers, told, strict=True)
        unknown = [each for each, answer, metrics in each_told if self._must_be_asked(each, answer, metrics)]
        self._use()  # before they are asked, which takes a moment
        await asyncio.gather(*map(self._ask, unknown))
        self._use()

    async def _take_addresses(self, look_up: LookUp) -> None:
        """Takes the addresses that there are now; without an answer, those of before."""
        try:
            urls = set(await look_up())
        except OSError as error:
            if str(error) != self._unheard:  # once, not every few seconds
                log.warning("%s: %s", self._label, error)
            self._unheard, self._is_unlisted = str(error), has_none(error)
            return
        self._unheard, self._is_unlisted = "", False
        if urls != self._identities.keys():
            known = self._identities
            self._silent &= urls
            self._identities = {url: known.get(url) or EngineIdentity(self._stated, is_new=True) for url in urls}
            self._pool.keep(urls)

    def _must_be_asked(self, endpoint: Endpoint, answer: EngineAnswer, metrics: EngineMetrics) -> bool:
        identity = self._identities[endpoint.url]
        self._late[endpoint.url] = self._late[endpoint.url] + 1 if answer.error == LATE else 0
        if answer.error == LATE:
            return False
        if not answer.status or answer.status > _OWN_FAILURE:
            self._is_gone(endpoint, answer)
            return False
        if answer.status != _OWN_FAILURE:
            self._silent.discard(endpoint.url)
        self._pool.keeps(endpoint.url, metrics.kept_tokens)
        must_be_asked = identity.must_be_asked(metrics, time.monotonic())
        if identity.is_fresh:
            self._pool.restarted(endpoint.url)
        return must_be_asked

    def _is_gone(self, endpoint: Endpoint, answer: EngineAnswer) -> None:
        if endpoint.url not in self._silent:  # once, not every few seconds
            why = why_no_answer(answer.error) if not answer.status else f"/metrics answers HTTP {answer.status}"
            log.warning("%s at %s: %s", self._label, endpoint.url, why)
        self._silent.add(endpoint.url)
        self._identities[endpoint.url].gone()

    async def _ask(self, endpoint: Endpoint) -> None:
        identity = self._identities[endpoint.url]
        answers = await ask_passively(endpoint.url, endpoint.key)
        if answers["metrics"].status >= _OWN_FAILURE:
            if not any(0 < each.status < _OWN_FAILURE for each in answers.values()):
                self._is_gone(endpoint, answers["metrics"])
                return
            self._silent.discard(endpoint.url)
        is_long = sum(len(each.body) for each in answers.values()) > LONG_BODY_BYTES
        metrics = await beside(is_long, _metrics_in, answers["metrics"])
        identity.learn(metrics, await beside(is_long, read, answers))
        if identity.told:
            log.warning("%s at %s: %s; facts: %s", self._label, endpoint.url, identity.told, dict(identity.facts or {}))
            self._changed()

    def _use(self) -> None:
        urls, known = agreed(self._identities, self._stated)
        facts = {**dict.fromkeys(self._stated), **known}  # what was stated and holds no longer is not known
        if self._is_unlisted:  # a name that has no address may be one of an outage: what answers is used on
            urls = [url for url in urls if url not in self._silent and self._late[url] < _LATE_TWICE]
        if in_time := [url for url in urls if self._late[url] < _LATE_TWICE]:
            urls = in_time
        if facts != self._facts:
            log.warning("%s: its facts are now %s", self._label, dict(facts))
            self._pool.use((), facts)  # until the policy has adopted them: what that forbids is never sent
            self._adopt(facts)
            self._facts = facts
        self._pool.use(urls, facts)

    def _on_silence(self, url: str) -> None:
        if (identity := self._identities.get(url)) is not None:
            identity.did_not_answer()
        self._look_now.set()


def _metrics_in(answer: EngineAnswer) -> EngineMetrics:
    return engine_metrics(answer.text)


class EngineWatch:
    """Watches all remote pools; `learn` takes their facts that hold now."""

    def __init__(self, config: GatewayConfig, pools: Mapping[PoolKey, Pool], learn: Learn, metrics: Metrics) -> None:
        self._changes = Counter[PoolKey]()
        self._watches: list[PoolWatch] = []
        for model, _, name, settings in config.each_pool():
            if isinstance(pool := pools[model, name], RemotePool):
                self._changes[model, name] = 0
                self._watches.append(self._watch((model, name), pool, settings, learn))
        metrics.read(
            "counter", "specgate_engine_changes_total",
            "Engines of others that were restarted or turned out to be something else",
            ("model", "pool"), lambda: list(self._changes.items()),
        )  # fmt: skip

    def _watch(self, key: PoolKey, pool: RemotePool, settings: PoolConfig, learn: Learn) -> PoolWatch:
        label, stated = "/".join(key), settings.facts

        def changed() -> None:
            self._changes[key] += 1

        def adopt(facts: Mapping[str, Any]) -> None:
            learn({key: dict(facts)})

        return PoolWatch(label, pool, stated, adopt, changed, look_up_of(settings))

    async def run(self) -> None:
        """Watches for ever."""
        await asyncio.gather(*(watch.run() for watch in self._watches))
