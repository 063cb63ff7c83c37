"""Simulated engines in one process, gateway replicas in others, reached over loopback HTTP."""

import asyncio
import logging
import multiprocessing
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, Literal, NamedTuple

from lab.sim import FAULTS, SimSettings, build_sim_app
from serve.gateway.ingress import GatewayReplica
from serve.http1.asgi import AsgiApp
from serve.http1.listener import Listener
from serve.http1.server import protocol_factory

DRAFTS = 3
GRAMMAR: Literal["kimi_k2"] = "kimi_k2"
_LASTING = ("stall", "slow_start")  # they cost the benchmark time and break no call
FAULTS_TRIED = tuple(
    name for name, fault in FAULTS.items() if "calls" in fault.kinds and fault.transport not in _LASTING
)
# No advisory covers simulated engines, so only the guard handles their faults.
_STANDARD = {"engine": "sim", "method": "none"}
_SPECULATIVE = {"engine": "sim", "method": "sim"}

Apps = Mapping[str, tuple[AsgiApp, Any]]  # each with `http` of `Listener.start`
Urls = dict[str, str]


class Gateway(NamedTuple):
    """Base URLs of a gateway replica: of its data port, and of its operators' routes."""

    data: str
    operators: str


def engine(
    rate: float = 0.0, *, speculative: bool = True, fault_seed: int = 0, prefill_ms: float = 0.0, step_ms: float = 0.0
) -> SimSettings:
    """A simulated engine in which every kind of fault is equally likely.

    Args:
        rate: Share of faulty answers.
        speculative: Whether it drafts; the text is the same.
        fault_seed: Changes which requests meet a fault.
        prefill_ms: Time to the first step.
        step_ms: Time of a step; 0 is as fast as it goes.
    """
    faults = {name: rate / len(FAULTS_TRIED) for name in FAULTS_TRIED} if rate else {}
    return SimSettings(
        model="m",
        grammar=GRAMMAR,
        num_speculative_tokens=DRAFTS if speculative else 0,
        faults=faults,
        fault_seed=fault_seed,
        prefill_ms=prefill_ms,
        step_ms=step_ms,
    )


def gateway_config(fast: str, safe: str, mode: str, quarantine: Mapping[str, Any], **guard: Any) -> dict[str, Any]:
    """One model with a speculative pool and a standard one behind it."""
    pools = {
        "speculative": {"kind": "remote", "url": fast, "facts": _SPECULATIVE},
        "standard": {"kind": "remote", "url": safe, "facts": _STANDARD},
    }
    model = {"family": "sim", "grammar": GRAMMAR, "guard": {"mode": mode, **guard}, "pools": pools}
    return {"models": {"m": model}, "quarantine": dict(quarantine)}


class Switch:
    """An engine that is one of two; `POST /cure` goes over to the second for good."""

    def __init__(self, before: AsgiApp, after: AsgiApp) -> None:
        self._app, self._after = before, after

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"] == "/cure":
            self._app = self._after
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return
        await self._app(scope, receive, send)


@contextmanager
def engines(settings: Mapping[str, SimSettings], cured: Mapping[str, SimSettings] | None = None) -> Iterator[Urls]:
    """Run engines in a process of their own; yields their URLs by name.

    Args:
        settings: By name.
        cured: What `POST /cure` makes of some of them.
    """
    with _process(_engines, dict(settings), dict(cured or {})) as urls:
        yield urls


@contextmanager
def gateway(config: Mapping[str, Any]) -> Iterator[Gateway]:
    """Run a gateway replica in a process of its own; yields where it listens."""
    with _process(_gateway, dict(config)) as urls:
        yield Gateway(**urls)


@contextmanager
def _process(apps: Callable[..., Apps], *arguments: Any) -> Iterator[Urls]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, apps, arguments), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours.recv()
    finally:
        ours.close()
        process.terminate()
        process.join()


def _serve(parent: Connection, apps: Callable[..., Apps], arguments: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of a terminal; the parent ends this one
    asyncio.run(_listen(parent, apps, arguments))


async def _listen(parent: Connection, apps: Callable[..., Apps], arguments: tuple[Any, ...]) -> None:
    urls = {}
    for name, app in apps(*arguments).items():
        listener = Listener("127.0.0.1")
        await listener.start(*app)
        urls[name] = f"http://127.0.0.1:{listener.port}"
    for name in ("uvicorn.error", "ray.serve"):  # answers that break are what is tried here, thousands of them
        logging.getLogger(name).setLevel(logging.CRITICAL)
    parent.send(urls)
    await asyncio.Event().wait()


def _engines(settings: Mapping[str, SimSettings], cured: Mapping[str, SimSettings]) -> Apps:
    return {
        name: (Switch(app, build_sim_app(cured[name])) if name in cured else app, "auto")
        for name, app in ((name, build_sim_app(each)) for name, each in settings.items())
    }


def _gateway(config: Mapping[str, Any]) -> Apps:
    replica = GatewayReplica(dict(config), [])
    return {"data": (replica.app(), protocol_factory(replica.hot)), "operators": (replica.operators_app(), "auto")}
