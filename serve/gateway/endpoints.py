"""The gateway's HTTP endpoints beside the completions: models, policy, explanations, health and metrics."""

import asyncio
from collections.abc import Mapping
from typing import Any

import fastapi
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from serve.config.gateway import GatewayConfig
from serve.errors import GatewayError, ModelNotFoundError
from serve.gateway.pipeline import Gateway
from serve.gateway.pools import PoolKey, reported_facts
from serve.proxy.exchange import read_body, request_headers
from serve.request.features import NO_SPECULATION
from serve.routing.pool import Pool


class GatewayApi:
    """The endpoints of one gateway replica.

    Args:
        config: The gateway's configuration.
        gateway: Decides requests.
        pools: All pools.

    Attributes:
        refused_update: Why the last update of the policy was refused; None if it was adopted.
    """

    def __init__(self, config: GatewayConfig, gateway: Gateway, pools: Mapping[PoolKey, Pool]) -> None:
        self.refused_update: str | None = None
        self._config = config
        self._gateway = gateway
        self._pools = pools

    def router(self) -> fastapi.APIRouter:
        """Returns all routes."""
        router = fastapi.APIRouter()
        router.add_api_route("/v1/models", self.models, methods=["GET"])
        router.add_api_route("/v1/models/{model:path}", self.model, methods=["GET"])
        router.add_api_route("/v1/policy", self.policy, methods=["GET"])
        router.add_api_route("/v1/route/explain", self.explain, methods=["POST"])
        router.add_api_route("/health", self.health, methods=["GET"])
        router.add_api_route("/ready", self.ready, methods=["GET"])
        router.add_api_route("/metrics", self.metrics, methods=["GET"])
        return router

    async def models(self) -> dict[str, Any]:
        """Lists the models."""
        return {"object": "list", "data": [_model_object(name) for name in self._config.models]}

    async def model(self, model: str) -> dict[str, Any]:
        """Describes one model, found by its name or an alias, with or without the suffix `:nospec`.

        Raises:
            ModelNotFoundError: No model has that name.
        """
        name = self._config.resolve(model) or self._config.resolve(model.removesuffix(NO_SPECULATION))
        if name is None:
            raise ModelNotFoundError.unknown(model, self._config.models)
        return _model_object(name)

    async def policy(self) -> dict[str, Any]:
        """Returns the active policy: its digest, what each pool may do, and why a newer one was refused."""
        return {**self._gateway.policy.to_dict(), "refused_update": self.refused_update}

    async def explain(self, request: fastapi.Request) -> JSONResponse:
        """Explains the decision for a body, made by the live code without an engine; `?api=` says whose body it is."""
        headers = request_headers(request.headers.raw)
        body = await read_body(request.receive, headers, self._config.limits.max_body_bytes)
        explanation, evidence = self._gateway.explain(body, headers, request.query_params.get("api", "chat"))
        return JSONResponse(explanation, headers={"x-specgate-evidence": f"evidence={evidence}"})

    async def health(self) -> dict[str, str]:
        """Returns 200 while this process serves."""
        return {"status": "ok"}

    async def ready(self) -> JSONResponse:
        """Returns 200 if every pool has a replica that answers, else 503."""
        facts = await asyncio.gather(*map(reported_facts, self._pools.values()))
        is_up = {key: pool_facts is not None for key, pool_facts in zip(self._pools, facts, strict=True)}
        pools = {f"{model}/{pool}": "up" if up else "starting or down" for (model, pool), up in is_up.items()}
        ready = all(is_up.values())
        return JSONResponse({"ready": ready, "pools": pools}, 200 if ready else 503)

    async def metrics(self) -> Response:
        """Returns all metrics in Prometheus's format."""
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)


def _model_object(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "specgate"}


async def error_response(_: fastapi.Request, error: Exception) -> Response:
    """Translates a `GatewayError` for the client."""
    assert isinstance(error, GatewayError)
    return Response(error.to_json(), error.status, media_type="application/json")


async def not_found(request: fastapi.Request, error: Exception) -> JSONResponse:
    """Refuses an unknown path or method in OpenAI's error shape."""
    status = getattr(error, "status_code", 404)
    message = f"{request.method} {request.url.path} is not served here."
    return JSONResponse(
        {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": "not_found"}}, status
    )
