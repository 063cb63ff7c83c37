"""Each alert fires while its cause lasts and stops after: a gateway that suffers, and Prometheus with our rules.

What needs Ray's processes to die is in tests/chaos/test_alerts.py.
"""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
from support.admin_api import admin_before
from support.engines import end, start
from support.guard_harness import tools_request
from support.guard_stack import KNOWN, NO_ADVISORIES, SPECULATES
from support.prometheus import Prometheus, needs_prometheus, prometheus, until, until_fired, until_silent
from support.stack import listening

from lab.sim import SimSettings, build_sim_app
from serve.access.key_file import KeyTerms, TenantRow
from serve.access.key_store import KeyStore
from serve.config.guard import GuardConfig
from serve.config.rate_limits import Limits
from serve.gateway.ingress import GatewayReplica
from serve.guard import rerun
from serve.guard.core import Guard, WholeGuard
from serve.http1.asgi import Receive, Scope, Send

MINUTE_S = 2.0  # of the rules


class Patient:
    """A simulated engine that can fall ill and recover while it runs.

    Attributes:
        started: When its process began, if it tells; another time is another process.
    """

    def __init__(self, model: str, drafts: int = 0, started: float | None = None) -> None:
        self.drafts = drafts
        self.started = started
        self._settings = {"model": model, "grammar": "qwen3_coder", "num_speculative_tokens": drafts}
        self.recover()

    def recover(self) -> None:
        self.suffer()

    def suffer(self, **symptoms: Any) -> None:
        self._app = build_sim_app(SimSettings.from_mapping({**self._settings, **symptoms}))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.started is not None and scope["type"] == "http" and scope["path"] == "/metrics":
            await start(send, kind="text/plain")
            await end(send, f"process_start_time_seconds {self.started}\n".encode())
        else:
            await self._app(scope, receive, send)


@dataclass
class Cause:
    """Something that goes wrong.

    Attributes:
        alerts: By name, labels that tell whom it concerns.
        begin: Makes it happen.
        end: Mends it.
    """

    alerts: dict[str, dict[str, str]]
    begin: Callable[[], None]
    end: Callable[[], None]


class Scene:
    """A gateway whose models each have one trouble of their own, under constant traffic.

    Args:
        url: Of the data port.
        session: For the traffic.
        store: Keys.
    """

    def __init__(self, url: str, session: aiohttp.ClientSession, store: KeyStore) -> None:
        self._url = url
        self._session = session
        self._store = store
        self._seeds = itertools.count()
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def key(self, tenant: str, **limits: Any) -> str:
        """Makes a key of a tenant with limits."""
        self._store.set_tenant(tenant, TenantRow(limits=Limits(**limits)))
        return self._store.create(KeyTerms(tenant=tenant)).token

    def ask(self, token: str, every_s: float, body: dict[str, Any]) -> None:
        """Sends a request again and again until its model may `rest`."""
        self._tasks[body["model"]] = asyncio.create_task(self._ask(token, every_s, body))

    def block(self) -> None:
        """Keeps the event loop busy, again and again until `rest`."""
        self._tasks["loop"] = asyncio.create_task(_block())

    def rest(self, name: str) -> None:
        """Ends what has that name."""
        self._tasks.pop(name).cancel()

    def rest_all(self) -> None:
        for name in list(self._tasks):
            self.rest(name)

    async def _ask(self, token: str, every_s: float, body: dict[str, Any]) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                group.create_task(self._send(token, {**body, "seed": next(self._seeds)}))
                await asyncio.sleep(every_s)

    async def _send(self, token: str, body: dict[str, Any]) -> None:
        headers = {"authorization": f"Bearer {token}"}
        async with self._session.post(f"{self._url}/v1/chat/completions", json=body, headers=headers) as response:
            await response.read()


async def _block() -> None:
    while True:
        time.sleep(0.3)  # noqa: ASYNC251 - that is the trouble
        await asyncio.sleep(0.7)


def prose(model: str, **more: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "hello"}], **more}


# By model: the engines of its pools, the first choice first.
PATIENTS = {
    "sound": {"only": Patient("sound")},
    "failing": {"only": Patient("failing", drafts=3)},
    "shaky": {"flaky": Patient("shaky", drafts=3), "standard": Patient("shaky")},
    "limited": {"only": Patient("limited")},
    "slow": {"only": Patient("slow")},
    "metered": {"only": Patient("metered")},
    "full": {"only": Patient("full")},
    "broken": {"fast": Patient("broken", drafts=3), "standard": Patient("broken")},
    "hopeless": {"fast": Patient("hopeless", drafts=3), "other": Patient("hopeless", drafts=3)},
    "undrafted": {"fast": Patient("undrafted", drafts=3)},
    "puzzling": {"only": Patient("puzzling")},
    "replaced": {"only": Patient("replaced", started=1.0)},
}  # fmt: skip
PUZZLING = GuardConfig(reruns=5)  # by which the fault of the guard knows its model
FAILING = {"model": "failing"}
BROKEN = {"truncated_string": 1.0}


def unchecked_since_2025(folder: Path) -> str:
    """Writes advisories that nobody has gone through for long; returns their folder."""
    folder.mkdir()
    text = (Path(NO_ADVISORIES) / "another-model.yaml").read_text(encoding="utf-8")
    checked = 'checked: {date: "2025-01-01", engine_versions: {vllm: "0.33.0"}}\n'
    (folder / "another-model.yaml").write_text(text + checked, encoding="utf-8")
    return str(folder)


def broken() -> None:
    raise ValueError("a fault of a part")


def puzzle(made: type) -> None:
    """Makes a kind of guard fail for the model that has its settings."""

    def puzzled(settings: GuardConfig, *args: Any, **named: Any) -> Any:
        if settings == PUZZLING:
            raise ValueError("a fault of the guard")
        return made(settings, *args, **named)

    setattr(rerun, made.__name__, puzzled)


def relieve_guard() -> None:
    rerun.Guard, rerun.WholeGuard = Guard, WholeGuard  # type: ignore[misc]


def causes(scene: Scene, replica: GatewayReplica, store: KeyStore, old: str, audit: Path) -> list[Cause]:
    """Everything that can go wrong without Ray."""
    steady, greedy = scene.key("steady"), scene.key("greedy", requests_per_minute=60)
    thrifty = scene.key("thrifty", tokens_per_month=10**9)
    engines = {f"{model}/{pool}": each for model, pools in PATIENTS.items() for pool, each in pools.items()}
    for model in ("sound", "failing", "shaky"):
        scene.ask(steady, 0.25, prose(model))
    scene.ask(steady, 0.1, prose("undrafted"))  # a collapse takes many answers to be sure of
    scene.ask(steady, 1.0, prose("slow", stream=True))
    scene.ask(steady, 0.1, tools_request(model="hopeless"))
    scene.ask(steady, 0.05, tools_request(model="broken"))  # a pool returns after hundreds of clean probes
    scene.ask(steady, 0.25, tools_request(model="puzzling"))
    scene.ask(thrifty, 0.2, prose("metered"))
    ending: list[str] = []

    def expire() -> None:
        soon = datetime.now(UTC) + timedelta(days=3)
        ending.append(store.create(KeyTerms(tenant="steady", expires=soon)).key.id)

    def overload() -> None:
        engines["full/only"].suffer(step_ms=50.0)
        scene.ask(steady, 0.3, prose("full"))

    def relieve() -> None:
        engines["full/only"].recover()
        scene.rest("full")

    def update_policy(**policy: Any) -> None:
        replica.reconfigure({"policy": {"advisories": NO_ADVISORIES, "load": "observe", **policy}})

    def illness(engine: str, alerts: dict[str, dict[str, str]], **symptoms: Any) -> Cause:
        return Cause(alerts, lambda: engines[engine].suffer(**symptoms), engines[engine].recover)

    def quota(tokens: int) -> None:
        store.set_tenant("thrifty", TenantRow(limits=Limits(tokens_per_month=tokens)))

    return [
        illness("failing/only", {"SpecgateErrorsFast": FAILING, "SpecgateErrorsSlow": FAILING},
                faults={"http_500": 0.5}),
        illness("shaky/flaky", {"SpecgateRetries": {"pool": "flaky"}}, faults={"http_500": 1.0}),
        illness("slow/only", {"SpecgateFirstTokenSlow": {"model": "slow"}}, prefill_ms=11_000.0),
        illness("broken/fast", {"SpecgateQuarantined": {"model": "broken", "pool": "fast"}},
                faults={"truncated_string": 0.5}),
        Cause({"SpecgateIntegrityFailures": {"model": "hopeless"}},
              lambda: [engines[f"hopeless/{pool}"].suffer(faults=BROKEN) for pool in ("fast", "other")],
              lambda: [engines[f"hopeless/{pool}"].recover() for pool in ("fast", "other")]),
        Cause({"SpecgateGuardErrors": {"model": "puzzling"}},
              lambda: [puzzle(made) for made in (Guard, WholeGuard)], relieve_guard),
        illness("undrafted/fast", {"SpecgateAcceptanceCollapsed": {"model": "undrafted"}}, acceptance=(0.0,)),
        Cause({"SpecgatePoolFull": {"model": "full"}}, overload, relieve),
        Cause({"SpecgateRefusing": {"model": "limited"}, "SpecgateTenantThrottled": {"tenant": "greedy"}},
              lambda: scene.ask(greedy, 0.2, prose("limited")), lambda: scene.rest("limited")),
        Cause({"SpecgateEngineChanged": {"model": "replaced", "pool": "only"}},
              lambda: setattr(engines["replaced/only"], "started", 2.0), lambda: None),
        Cause({"SpecgateQuotaNearlySpent": {"tenant": "thrifty"}}, lambda: quota(5000), lambda: quota(10**9)),
        Cause({"SpecgateBackgroundFailing": {"part": "load"}},
              lambda: setattr(replica.load, "check", broken), lambda: delattr(replica.load, "check")),
        # Before the next one, which leaves these advisories in force.
        Cause({"SpecgateAdvisoriesOld": {}}, lambda: update_policy(advisories=old), update_policy),
        Cause({"SpecgatePolicyUpdateRefused": {}}, lambda: update_policy(nonsense=True), update_policy),
        Cause({"SpecgateKeysEnd": {}}, expire, lambda: store.revoke(ending.pop())),
        Cause({"SpecgateAuditFailing": {}}, lambda: audit.rename(audit.with_name("away")),
              lambda: audit.with_name("away").rename(audit)),
    ]  # fmt: skip


def pool(engine: Patient, url: str, slots: int) -> dict[str, Any]:
    """One that is allowed for everything, so that troubles are where they were put."""
    facts = {**SPECULATES, "num_speculative_tokens": engine.drafts} if engine.drafts else KNOWN
    return {"kind": "remote", "url": url, "facts": facts, "max_ongoing_requests": slots}


@asynccontextmanager
async def suffering(folder: Path) -> AsyncIterator[tuple[list[Cause], Cause, GatewayReplica]]:
    """Runs the gateway's data port under traffic; nothing is wrong yet."""
    async with AsyncExitStack() as stack:
        models: dict[str, Any] = {}
        for model, engines in PATIENTS.items():
            models[model] = {"family": "sim", "grammar": "qwen3_coder", "pools": {}}
            if model == "puzzling":
                models[model]["guard"] = {"reruns": PUZZLING.reruns}
            for name, engine in engines.items():
                url = (await stack.enter_async_context(listening(engine))).url
                models[model]["pools"][name] = pool(engine, url, slots=1 if model == "full" else 256)
        config = {
            "models": models,
            "policy": {"advisories": NO_ADVISORIES, "load": "observe"},
            "quarantine": {"probe_share": 0.5, "reference_share": 0.5, "window": 300, "tolerance": 0.1},
            "access": {"mode": "required", "state_dir": str(folder)},
        }
        store = KeyStore(folder)
        stack.callback(store.close)
        session = await stack.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
        replica = GatewayReplica(config, [])
        data = await stack.enter_async_context(listening(replica.app(), replica.hot))
        scene = Scene(data.url, session, store)
        stack.callback(scene.rest_all)
        lag = Cause({"SpecgateEventLoopLag": {"replica": "replica"}}, scene.block, lambda: scene.rest("loop"))
        yield causes(scene, replica, store, unchecked_since_2025(folder / "old"), folder / "audit"), lag, replica


@needs_prometheus
async def test_each_alert_fires_while_its_cause_lasts_and_stops_after(tmp_path: Path) -> None:
    async with (
        suffering(tmp_path) as (wrong, lag, replica),
        admin_before(audit=tmp_path / "audit") as admin_api,
        prometheus(tmp_path, [{"targets": [admin_api.admin_api.partition("://")[2]]}], MINUTE_S) as asked,
    ):
        async with listening(replica.operators_app()) as operators:
            admin_api.replicas.announce("replica", operators)
            await until(lambda: calm(asked), lambda: "it never was well", 60)

            for cause in wrong:
                cause.begin()
            await until_fired(asked, [alert for cause in wrong for alert in cause.alerts.items()])

            for cause in wrong:
                cause.end()
            lag.begin()  # apart from the others, because whoever lags is scraped late
            await until_fired(asked, lag.alerts.items())
            lag.end()
            await until_silent(asked)
        await until_fired(asked, [("SpecgateSilent", {})])
        async with listening(replica.operators_app()) as operators:
            admin_api.replicas.announce("replica", operators)
            await until_silent(asked)


async def calm(asked: Prometheus) -> bool:
    return bool(await asked.values("sum(increase(specgate_requests_total[10s])) > 50")) and not await asked.firing()
