"""The HTTP endpoints of a gateway replica beside the completions, for clients and for the admin API."""

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

import fastapi
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST

from policies import choose, decide, explain
from serve import VERSION
from serve.access.principal import ANONYMOUS, MODELS_HEADER, Principal
from serve.admin.authorization import PRINCIPAL, principal_of
from serve.config.gateway import GatewayConfig
from serve.config.model_names import ModelNames
from serve.dialects.api import as_chat, refusal
from serve.dialects.messages.response import VERSION_HEADER, model_info, model_page
from serve.errors import INTERNAL, GatewayError, ModelNotFoundError
from serve.gateway.pipeline import Gateway
from serve.gateway.policy_updates import PolicyUpdates
from serve.gateway.pools import PoolKey, Scale, reported_facts
from serve.http1.turns import LONG_BODY_BYTES, beside
from serve.proxy.headers import request_headers, request_id_of
from serve.request.body_reader import NO_SPECULATION
from serve.request.completion import CHAT_PATH, TEXT_PATH
from serve.request.continuation import obstacle
from serve.request.receive import read_body
from serve.routing.pool import Pool
from serve.telemetry.metrics import Metrics
from serve.telemetry.request_log import log_fault

log = logging.getLogger("ray.serve.specgate.gateway")

_DOWN = "starting or down"
_SERVER = {"server": f"specgate/{VERSION}"}  # on what is no model's answer
_PLACES = (
    ("POST /v1/chat/completions", "OpenAI's chat completions: the base URL ends in /v1"),
    ("POST /v1/responses", "OpenAI's Responses, as Codex wants it: the base URL ends in /v1"),
    ("POST /v1/messages", "Anthropic's Messages, as Claude Code wants it: the base URL has no /v1"),
    ("GET /v1/models", "the models"),
    ("GET /ready", "whether every pool is up"),
    ("GET /health", "whether this process runs, and its version"),
)
_ROWS = "".join(f"<tr><td><code>{route}</code><td>{meaning}" for route, meaning in _PLACES)
# No script, and nothing from elsewhere. It names no model: who may use which is for those with a key.
_PAGE = f"""<!doctype html><html lang="en"><meta charset="utf-8"><title>specgate</title>
<meta name="viewport" content="width=device-width">
<h1>specgate {VERSION}</h1>
<p>An LLM gateway. Point a client here, or let <code>specgate connect</code> print the lines for yours.</p>
<table>{_ROWS}</table>
<p>The dashboard is on a port of its own, the admin API's: 8001 on the head node, unless its start said another.</p>
</html>
"""
_PAGE_HEADERS = {"content-security-policy": "default-src 'none'", "x-content-type-options": "nosniff"}


class GatewayApi:
    def __init__(
        self,
        config: GatewayConfig,
        scale: Scale,
        gateway: Gateway,
        pools: Mapping[PoolKey, Pool],
        updates: PolicyUpdates,
        metrics: Metrics,
    ) -> None:
        self._config = config
        self._names = ModelNames(config.each_name())
        self._scale = scale
        self._gateway = gateway
        self._pools = pools
        self._updates = updates
        self._metrics = metrics
        self._started_s = int(time.time())

    def routes(self) -> fastapi.APIRouter:
        """Returns the routes of the data port beside the completions."""
        router = fastapi.APIRouter()
        router.add_api_route("/", self.root, methods=["GET", "HEAD"])
        router.add_api_route("/v1/models", self.models, methods=["GET", "HEAD"])
        router.add_api_route("/v1/models/{model:path}", self.model, methods=["GET", "HEAD"])
        router.add_api_route("/v1/route/explain", self.explain, methods=["POST"])
        router.add_api_route("/health", self.health, methods=["GET", "HEAD"])
        router.add_api_route("/version", self.version, methods=["GET", "HEAD"])
        router.add_api_route("/ready", self.ready, methods=["GET", "HEAD"])
        return router

    def operator_routes(self) -> fastapi.APIRouter:
        """Returns the routes for the admin API, which asks on behalf of an operator."""
        router = fastapi.APIRouter()
        router.add_api_route("/admin/v1/policy", self.policy, methods=["GET"])
        router.add_api_route("/v1/route/explain", self.explain, methods=["POST"])
        router.add_api_route("/metrics", self.metrics, methods=["GET"])
        return router

    async def models(self, request: fastapi.Request) -> dict[str, Any]:
        """Lists the models that the caller may use, in the form of the API that the caller speaks."""
        models = [self._model_object(name) for name in self._visible(request)]
        return model_page(models) if VERSION_HEADER in request.headers else {"object": "list", "data": models}

    async def model(self, request: fastapi.Request, model: str) -> dict[str, Any]:
        """Describes one model, found by its name or an alias, with or without the suffix `:nospec`.

        Without a name it lists all.

        Raises:
            ModelNotFoundError: No model that the caller may use has that name.
        """
        if not model:
            return await self.models(request)
        asked = unquote(model)  # our listener leaves paths as they were sent, and names may hold a slash
        name = self._resolve(asked)
        visible = self._visible(request)
        if name not in visible:
            raise ModelNotFoundError.unknown(asked, visible)
        found = self._model_object(name)
        return model_info(found) if VERSION_HEADER in request.headers else found

    def max_model_len(self, model: str) -> int | None:
        """Returns the longest request that every pool of a model takes, given any of its names; None if unknown."""
        name = self._resolve(model)
        facts = self._updates.facts
        lengths = [
            facts.get((pool.model, pool.pool), {}).get("max_model_len", pool.settings.get("max_model_len"))
            for pool in self._gateway.policy.facts
            if pool.model == name
        ]
        return min((length for length in lengths if isinstance(length, int) and length > 0), default=None)

    async def policy(self) -> dict[str, Any]:
        """Returns the active policy: its digest, what each pool may do, and why a newer one was refused."""
        return {**self._gateway.policy.to_dict(), "refused_update": self._updates.refused}

    async def explain(self, request: fastapi.Request) -> JSONResponse:
        """Explains the decision for a body, made by the live code without an engine; `?api=` says whose body it is."""
        headers = request_headers(request.headers.raw)
        body = await read_body(request.receive, headers, self._config.limits.max_body_bytes)
        api = request.query_params.get("api", "chat")
        try:
            explained, evidence = await explanation(self._gateway, body, headers, api, principal_of(request.scope))
        except GatewayError:
            raise
        except BaseException:  # noqa: BLE001 - logged here, or the web server would with its text
            log_fault(log, "an explanation failed", request_id_of(headers))
            raise GatewayError(INTERNAL) from None
        return JSONResponse(explained, headers={"x-specgate-evidence": f"evidence={evidence}"})

    async def root(self, request: fastapi.Request) -> Response:
        """Says what this is and where to go on, to a browser as a page, to others as JSON."""
        if "text/html" in request.headers.get("accept", ""):
            return Response(_PAGE.encode(), headers=_PAGE_HEADERS, media_type="text/html; charset=utf-8")
        return JSONResponse({"name": "specgate", "version": VERSION, "routes": dict(_PLACES)}, headers=_SERVER)

    async def health(self) -> JSONResponse:
        """Returns 200 while this process serves, and specgate's version."""
        return JSONResponse({"status": "ok", "version": VERSION}, headers=_SERVER)

    async def version(self) -> JSONResponse:
        """Returns specgate's version, where clients of vLLM ask for that of an engine: pools may have several."""
        return JSONResponse({"version": VERSION}, headers=_SERVER)

    async def ready(self, request: fastapi.Request) -> JSONResponse:
        """Returns 200 if every pool has a running replica or may have none, else 503. A full pool is up.

        Anybody learns that much; which pools there are is for those who may observe.
        """
        facts = await asyncio.gather(*map(reported_facts, self._pools.values()))
        is_up = {key: pool_facts is not None for key, pool_facts in zip(self._pools, facts, strict=True)}
        pools = {f"{model}/{pool}": self._state(model, pool, is_up=up) for (model, pool), up in is_up.items()}
        ready = _DOWN not in pools.values()
        details = {"pools": pools} if "observe" in principal_of(request.scope).scopes else {}
        return JSONResponse({"ready": ready, **details}, 200 if ready else 503, _SERVER)

    async def metrics(self) -> Response:
        """Returns all metrics in Prometheus's format."""
        return Response(self._metrics.exposition(), media_type=CONTENT_TYPE_LATEST)

    def _visible(self, request: fastapi.Request) -> list[str]:
        return [name for name in self._config.models if principal_of(request.scope).may_use(name)]

    def _resolve(self, model: str) -> str | None:
        return self._names.own_name(model) or self._names.own_name(model.removesuffix(NO_SPECULATION))

    def _state(self, model: str, pool: str, *, is_up: bool) -> str:
        if is_up:
            return "up"
        return "scaled to zero" if self._scale.may_sleep(model, pool) else _DOWN

    def _model_object(self, name: str) -> dict[str, Any]:
        model = {"id": name, "object": "model", "created": self._started_s, "owned_by": "specgate"}
        length = self.max_model_len(name)
        return model if length is None else {**model, "max_model_len": length}


async def as_operator(request: fastapi.Request) -> None:
    """Lets a request do everything, with its caller's models: the admin API has asked who that is."""
    models = request.headers.get(MODELS_HEADER)
    principal = ANONYMOUS if models is None else replace(ANONYMOUS, models=tuple(models.split(",")))
    request.scope.setdefault("state", {})[PRINCIPAL] = principal


async def error_response(request: fastapi.Request, error: Exception) -> Response:
    """Translates a `GatewayError` for the client."""
    assert isinstance(error, GatewayError)
    request_id = request_id_of(request.headers)
    status, body, headers = refusal(error, request.scope["path"], request.headers, request_id)
    return Response(body, status, headers, media_type="application/json")


async def explanation(
    gateway: Gateway, body: bytes, headers: Mapping[str, str], api: str = "chat", principal: Principal = ANONYMOUS
) -> tuple[dict[str, Any], str]:
    """Returns the decision for a request and the evidence for it, as `Gateway` would decide now. No engine is asked,
    nothing is counted, and chance does not draw: what it may draw is told. `api` is as of `as_chat`.

    Raises:
        GatewayError: The request is wrong.
    """
    body = await beside(len(body) > LONG_BODY_BYTES, as_chat, body, api)
    read = await gateway.read(body, headers, principal)
    features = read.features
    decision = decide(gateway.policy, features, features.preference)
    load = gateway.load
    figures = () if decision.refused else load.figures(decision, features, len(body))
    decision = choose(decision, load.order(decision, features, len(body), count=False))
    terms = gateway.trial_terms(TEXT_PATH if read.parsed.messages is None else CHAT_PATH, decision)
    explained = explain(gateway.policy, features, decision, terms)
    if (why := obstacle(features)) is not None:
        explained = {**explained, "rerun_only": why}  # a broken answer can't go on elsewhere
    return {**explained, "load": figures} if figures else explained, decision.evidence
