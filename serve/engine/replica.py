"""The Ray Serve deployment around one vLLM engine: start, checks, routes, slots, warm-up, health, drain."""

import asyncio
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from http.client import HTTPConnection
from typing import Any

import ray

from serve.config.grammar import resolved
from serve.config.pool import ModelConfig
from serve.errors import ConfigError, encode_json
from serve.http1.asgi import AsgiApp, AsgiMessage, Receive, Send
from serve.http1.listener import AllowedRoutes, Listener, engine_key, node_address
from serve.routing.autoscaling import ONGOING
from serve.routing.leases import MAX_AGE_S
from serve.routing.pool import SLOT_HEADER
from serve.telemetry.request_log import write_now

log = logging.getLogger("ray.serve.specgate.engine")

_WATCH_PERIOD_S = 0.1
_SLOT = SLOT_HEADER.encode()
# The routes of an engine that can be reached, all of them with its key. vLLM asks for its API key under `/v1` only:
# `/invocations` runs any request without one, and `/tokenize`, `/metrics` or `/scale_elastic_ep` are as open (its own
# help of `--api-key` says so). Whoever reached an engine's port would go around policy, guard and limits.
ENGINE_ROUTES = frozenset(
    {
        ("POST", "/v1/chat/completions"),
        ("POST", "/v1/completions"),
        ("POST", "/tokenize"),
        ("POST", "/detokenize"),
        ("GET", "/v1/models"),
        ("GET", "/health"),
        ("GET", "/metrics"),
    }
)


class Slots:
    """ASGI middleware that releases slots whose holder is gone: Ray Serve never does, and a dead one would keep them.

    Every request names its slot. One that has had no request for `after_s`, which must be longer than gateways keep an
    idle slot, is released; nearly always its holder has already done so, and then this has no effect.
    """

    def __init__(self, app: AsgiApp, release: Callable[[str], None], after_s: float = 2 * MAX_AGE_S) -> None:
        self._app = app
        self._release = release
        self._after_s = after_s
        self._requests: Counter[str] = Counter()  # by slot
        self._timers: dict[str, asyncio.TimerHandle] = {}  # of idle slots

    async def __call__(self, scope: AsgiMessage, receive: Receive, send: Send) -> None:
        slot = _slot_of(scope)
        if not slot:
            await self._app(scope, receive, send)
            return
        self._begin(slot)
        try:
            await self._app(scope, receive, send)
        finally:
            self._end(slot)

    def _begin(self, slot: str) -> None:
        self._requests[slot] += 1
        if timer := self._timers.pop(slot, None):
            timer.cancel()

    def _end(self, slot: str) -> None:
        self._requests[slot] -= 1
        if not self._requests[slot]:
            del self._requests[slot]
            self._timers[slot] = asyncio.get_running_loop().call_later(self._after_s, self._expire, slot)

    def _expire(self, slot: str) -> None:
        del self._timers[slot]
        self._release(slot)


def release_slot(slot: str) -> None:
    """Release a slot of the replica that runs here."""
    # Like the slot's token, this is not public API of Ray Serve; tests/ray/test_slots.py fails if it changes.
    ray.get_runtime_context().current_actor.release_slot.remote(slot)


def _slot_of(scope: AsgiMessage) -> str:
    headers = scope.get("headers", ())  # lifespan scopes have none
    return next((value.decode("latin-1") for name, value in headers if name == _SLOT), "")


class VllmReplica:
    """One vLLM engine, which serves the gateway on its own HTTP port.

    Ray Serve's handle carries control traffic only: `choose_replica` reserves a slot here and returns the port from
    `record_replica_metadata`.
    """

    async def __init__(  # type: ignore[misc]  # Ray Serve awaits it
        self, model: str, pool: str, config: dict[str, Any]
    ) -> None:
        # Imported here because the controller and the gateway load this module without vLLM installed.
        started = time.monotonic()
        from serve.engine.vllm import host
        from serve.engine.vllm.markers import check_markers

        self._model = model
        self._pool = pool
        model_config = ModelConfig.model_validate(config)
        settings = model_config.pools[pool]
        log.info("%s/%s: vLLM imported in %.1f s, loading the model", model, pool, time.monotonic() - started)
        self._listener = Listener(node_address(), engine_key())
        args = host.parse_args(
            model_config.engine_args_of(pool), (model, *model_config.exact_aliases), self._listener.key
        )
        self._engine = await host.start_engine(args, opt_out=settings.opt_out)
        loaded = time.monotonic()
        check_markers(self._engine.client.get_tokenizer(), resolved(model, model_config), settings.markers)
        slots = Slots(self._engine.app, release_slot)
        await self._listener.start(AllowedRoutes(slots, self._listener.key, ENGINE_ROUTES))
        await self._warm_up()
        self._watching = asyncio.create_task(self._end_with_engine())
        log.info(
            "%s/%s: ready in %.1f s (engine %.1f s, checks and warm-up %.1f s); it keeps %s tokens of prompts",
            model, pool, time.monotonic() - started, loaded - started, time.monotonic() - loaded,
            self._engine.kept_tokens or "an unknown number of",
        )  # fmt: skip

    async def record_replica_metadata(self) -> dict[str, Any]:
        """Ray Serve's hook: called once when the replica is ready; whoever chooses this replica gets the result."""
        return {**self._listener.metadata, "facts": self._engine.facts, "kept_tokens": self._engine.kept_tokens}

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Ray Serve's hook: the metrics that `serve.routing.autoscaling` scales by."""
        return {ONGOING: self._listener.ongoing}

    async def check_health(self) -> None:
        """Ray Serve's hook: replaces the replica if this raises, or takes longer than `health_check_timeout_s`, thrice.

        vLLM's own check tells whether the engine core has died. One that stands still is found by a question that it
        answers between two steps, whatever the answer.
        """
        write_now()
        self._listener.check()
        await self._engine.client.check_health()
        await self._engine.client.is_sleeping()

    async def _end_with_engine(self) -> None:
        """Ends this process when its engine has died.

        Ray would ask for its health three times first. In that half-minute every request to it fails, and so fast that
        it seems the least loaded replica. A process that is gone gets none, and is replaced sooner.
        """
        while not self._engine.client.errored:  # noqa: ASYNC110  # vLLM tells nobody
            await asyncio.sleep(_WATCH_PERIOD_S)
        log.error("the engine of %s/%s has died; its replica ends, and Ray starts another", self._model, self._pool)
        await self._listener.stop()  # which leaves open responses a second for their errors
        self._engine.shutdown()
        write_now()
        os._exit(1)  # no exception ends an actor from here

    async def _warm_up(self) -> None:
        """Sends one plain and one grammar-constrained request, so that no user waits for first-time compilation.

        Raises:
            ConfigError: The engine refused a request.
        """
        for extra in ({}, {"response_format": {"type": "json_object"}}):
            await asyncio.to_thread(self._request, extra)

    def _request(self, extra: Mapping[str, Any]) -> None:
        body = {"model": self._model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, **extra}
        headers = {"authorization": f"Bearer {self._listener.key}", "content-type": "application/json"}
        with closing(HTTPConnection(self._listener.host, self._listener.port)) as connection:
            connection.request("POST", "/v1/chat/completions", encode_json(body), headers)
            response = connection.getresponse()
            if response.status != 200:
                text = response.read().decode(errors="replace")
                raise ConfigError(f"the warm-up request failed: {response.status} {text}")

    def __del__(self) -> None:
        """Ray Serve calls this after draining; the engine core is a separate process and must be stopped too."""
        if watching := getattr(self, "_watching", None):
            watching.cancel()
        if engine := getattr(self, "_engine", None):
            engine.shutdown()
