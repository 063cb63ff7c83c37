"""Engines send their spans where the gateway sends its own, unless a pool says otherwise."""

from typing import Any

import pytest

from serve.app import hosted
from serve.config.gateway import GatewayConfig
from serve.config.pool import PoolConfig

URL = "http://collector:4318/v1/traces"


def pool(settings: dict[str, Any], endpoint: str | None = URL, **model: Any) -> PoolConfig:
    models = {"org/m": {"family": "f", "grammar": "hermes", "pools": {"fast": settings}, **model}}
    config = GatewayConfig.parse({"models": models, "telemetry": {"traces_endpoint": endpoint}})
    return hosted(config)["org/m", "fast"].config.pools["fast"]


def test_a_vllm_pool_gets_the_endpoint_the_protocol_and_its_names() -> None:
    settings = pool({"engine_args": {"model": "x"}})
    assert settings.engine_args == {"model": "x", "otlp-traces-endpoint": URL}
    assert settings.env == {
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
        "OTEL_SERVICE_NAME": "vllm",
        "OTEL_RESOURCE_ATTRIBUTES": "specgate.model=org/m,specgate.pool=fast",
    }


@pytest.mark.parametrize("of_the_model", [True, False])
def test_a_pool_that_names_its_own_collector_keeps_it(of_the_model: bool) -> None:
    own = {"engine_args": {"otlp_traces_endpoint": "http://own:4317"}}
    env = {"env": {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"}}
    settings = pool(env, **own) if of_the_model else pool({**own, **env})
    assert URL not in settings.engine_args.values()
    assert settings.env["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"] == "grpc"


@pytest.mark.parametrize("settings", [{"kind": "sim"}, {"engine_args": {"model": "x"}}])
def test_nothing_is_added_without_an_endpoint_or_to_what_is_no_vllm(settings: dict[str, Any]) -> None:
    endpoint = URL if "kind" in settings else None
    assert pool(settings, endpoint) == PoolConfig.model_validate(settings)
