"""The parts of a gateway replica: what each feature does beside the requests, on or off by the configuration."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import fastapi

from policies import Policy, PoolFacts
from serve.access.key_ring import show_keys
from serve.access.live import AnyAccess, live_access
from serve.config.gateway import GatewayConfig
from serve.echo.canary import EchoCanary, show_echo
from serve.gateway.announcer import announce
from serve.gateway.pools import PoolKey
from serve.guard.attempt_result import ResultSink
from serve.guard.transcript import NULL_TRANSCRIPTS, AnyTranscripts, Transcripts
from serve.limits.accounts import NULL_ACCOUNTS, Accounts, AnyAccounts, show_limits, usage_routes
from serve.limits.actor import connect as connect_ledger
from serve.load.live_load import NULL_LOAD, AnyLoad, LiveLoad, show_load
from serve.load.shared_load import SharedLoad
from serve.load.shared_load import connect as connect_load
from serve.proxy.attempts import Attempts
from serve.proxy.upstream import Upstream
from serve.quarantine.detector import EchoCount
from serve.quarantine.live_policy import LivePolicy, QuarantinedPolicy
from serve.quarantine.live_policy import routes as quarantine_routes
from serve.quarantine.shared_detector import connect as connect_detector
from serve.routing.pool import Pool
from serve.shadow.copies import NULL_SHADOWS, NullShadows, Shadows, show_shadows
from serve.shared.link import Link, application, replica_name
from serve.telemetry.instruments import Telemetry
from serve.telemetry.metrics import Metrics

log = logging.getLogger("ray.serve.specgate.gateway")

STOP_S = 5.0
AGAIN_S = 1.0  # after which what has failed begins again; twice as long after each further failure
_MOST_AGAIN_S = 30.0


async def _nothing() -> None:
    """Does nothing."""


@dataclass(frozen=True, slots=True)
class Part:
    """One feature of a gateway replica; without arguments, one that is off.

    Attributes:
        name: As metrics and logs call it.
        run: Works for as long as the replica serves; it is cancelled then. If it fails, it is called again.
        routes: Those of the admin API.
        close: Ends the feature, once nothing of any part runs.
    """

    name: str = ""
    run: Callable[[], Coroutine[Any, Any, None]] = _nothing
    routes: fastapi.APIRouter = field(default_factory=fastapi.APIRouter)
    close: Callable[[], Awaitable[None]] = _nothing


OFF = Part()


@asynccontextmanager
async def running(parts: Sequence[Part], failed: Callable[[str], None] = lambda _: None) -> AsyncIterator[None]:
    """Runs parts for as long as the context lasts, and then closes all of them, the last one first.

    A part whose `run` fails is logged and begins again; the others, and the requests, go on. `failed` is told the name
    of each that failed.
    """
    async with AsyncExitStack() as closing:
        for part in parts:
            closing.push_async_callback(part.close)
        tasks = [asyncio.create_task(_keep_running(part, failed)) for part in parts]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=STOP_S)  # one may be in the midst of a report


async def _keep_running(part: Part, failed: Callable[[str], None]) -> None:
    """Runs a part until it ends by itself, which only one does that has nothing to run."""
    again_s = AGAIN_S
    while True:
        begun_s = time.monotonic()
        try:
            await part.run()
        except Exception as error:  # whatever it is, what the part does must not stay undone
            if time.monotonic() - begun_s > _MOST_AGAIN_S:
                again_s = AGAIN_S
            message = "a background task of this replica has ended, and begins again in %.0f s: %s"
            log.error(message, again_s, part.name, exc_info=error)
            failed(part.name)
            await asyncio.sleep(again_s)
            again_s = min(2 * again_s, _MOST_AGAIN_S)
        else:
            return


class Quarantine(NamedTuple):
    """Quarantine as the other parts need it."""

    live: LivePolicy
    sink: ResultSink
    cells: Callable[[], list[dict[str, Any]]]
    changes: Callable[[], list[dict[str, Any]]]
    part: Part


def quarantine_of(config: GatewayConfig, policy: Policy, metrics: Metrics) -> Quarantine:
    """Returns the quarantine of cells that answer badly (`quarantine.enabled`); without it, the policy as it is."""
    if not config.quarantine.enabled:
        return Quarantine(LivePolicy(policy), lambda _: None, list, list, OFF)
    guards = {name: model.guard for name, model in config.models.items()}
    link = connect_detector(application(), config.quarantine.state_dir)
    live = QuarantinedPolicy(config.quarantine, guards, policy, link)
    metrics.read(
        "gauge", "specgate_detector_age_seconds", "Time since the detector of quarantine last answered",
        (), lambda: [((), live.detector_age_s())],
    )  # fmt: skip
    return Quarantine(
        live, live, live.cells, live.changes, Part("quarantine", run=live.run, routes=quarantine_routes(live))
    )


def load_of(config: GatewayConfig, policy: Policy, gateways: int, metrics: Metrics) -> AnyLoad:
    """Returns the load of all pools, by which candidates are ordered (`policy.load`)."""
    if config.policy.load == "off":
        return NULL_LOAD
    load = LiveLoad(config, policy, gateways)
    show_load(metrics, load)
    return load


def shared_load(config: GatewayConfig, load: AnyLoad, pools: Mapping[PoolKey, Pool]) -> Part:
    """Returns the part that shares the load, and what tenants were given, with the other gateway replicas; outside Ray
    prompts alone, and only with a store.
    """
    by_prefix = any(pool.routing == "prefix" for *_, pool in config.each_pool())
    if not (load.learns or by_prefix or config.access.mode != "off" or config.limits.reserved_slots):
        return OFF  # without tenants and reserved slots there is nothing to share fairly
    if not (by_prefix and config.rate_limits.store) or application() is not None:
        return Part("load", run=SharedLoad(load, pools, connect_load(application())).run)
    from serve.limits.store import RedisStore  # only here, as everybody else needs no client of Redis

    store = RedisStore(config.rate_limits.store)
    return Part("load", run=SharedLoad(load, pools, connect_load(None, store.tell)).run, close=store.close)


def limits_of(config: GatewayConfig, gateways: int, metrics: Metrics) -> tuple[AnyAccounts, Part]:
    """Returns limits and usage (`rate_limits`)."""
    if not config.counts_usage:
        return NULL_ACCOUNTS, OFF
    ledger = connect_ledger(application(), config.access.state_dir, config.rate_limits.store)
    accounts = Accounts(config.rate_limits, ledger, gateways, names=dict(config.each_name()))
    show_limits(metrics, accounts)
    return accounts, Part("limits", run=accounts.run, routes=usage_routes(accounts), close=accounts.end)


def access_of(config: GatewayConfig, admin_api: Link | None, metrics: Metrics) -> tuple[AnyAccess, Part]:
    """Returns access control (`access.mode`)."""
    access = live_access(config.access, admin_api)
    show_keys(metrics, access.ring)
    return access, Part("access", run=access.run, close=access.close)


def shadows_of(
    config: GatewayConfig, pools: Mapping[PoolKey, Pool], upstream: Upstream, telemetry: Telemetry
) -> tuple[Shadows | NullShadows, Part]:
    """Returns what compares candidate pools with those that serve (`shadow` of a model)."""
    if all(model.shadow is None for model in config.models.values()):
        return NULL_SHADOWS, OFF
    shadows = Shadows(config, Attempts(config, pools, upstream, telemetry, NULL_LOAD))
    show_shadows(telemetry.metrics, shadows)
    return shadows, Part(close=shadows.close)


def echo_of(
    config: GatewayConfig,
    live: LivePolicy,
    pools: Mapping[PoolKey, Pool],
    upstream: Upstream,
    telemetry: Telemetry,
    gateways: int,
) -> Part:
    """Returns what has every pool copy identifiers now and then (`echo_canary`)."""
    if config.echo_canary is None:
        return OFF

    def copied(facts: PoolFacts, build: str, identifiers: int, corrupted: int) -> None:
        live.copied(EchoCount(facts.model, facts.pool, facts.speculative, build, identifiers, corrupted))

    def is_judged(facts: PoolFacts, build: str) -> bool:
        return live.echo_build((facts.model, facts.pool, facts.speculative)) == (build, True)

    attempts = Attempts(config, pools, upstream, telemetry, NULL_LOAD)
    canary = EchoCanary(
        config.echo_canary, config, lambda: live.policy.facts, pools, attempts, copied, is_judged,
        telemetry.tokens_answered, gateways,
    )  # fmt: skip
    show_echo(telemetry.metrics, canary)
    return Part("echo canary", run=canary.run)


def transcripts_of(config: GatewayConfig) -> AnyTranscripts:
    """Returns what keeps the texts of requests that were rerun (`admin.rerun_content`)."""
    return Transcripts() if config.admin.rerun_content else NULL_TRANSCRIPTS


def announcements(admin_api: Link | None, app: Callable[[], fastapi.FastAPI]) -> Part:
    """Returns the part that serves operators' routes and announces where, if there is an admin API."""
    if admin_api is None:
        return OFF
    return Part("announcements", run=lambda: announce(admin_api, replica_name(), app()))
