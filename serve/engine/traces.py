"""Environment of a vLLM engine that sends its spans where the gateway sends its own."""

from serve.config.pool import ModelConfig, PoolConfig

_ENDPOINT = "otlp-traces-endpoint"


def with_traces(model: str, config: ModelConfig, pool: str, endpoint: str | None) -> PoolConfig:
    """Returns a pool's settings with what makes its engines export spans; the pool's own settings come first.

    vLLM continues the trace of each request by itself, and with it the choice whether that is sampled.
    """
    settings = config.pools[pool]
    if endpoint is None or settings.kind != "vllm":
        return settings
    args = settings.engine_args
    if _ENDPOINT not in config.engine_args_of(pool):
        args = {**args, _ENDPOINT: endpoint}
    env = {
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",  # vLLM's default is gRPC, on another port
        "OTEL_SERVICE_NAME": "vllm",
        "OTEL_RESOURCE_ATTRIBUTES": f"specgate.model={model},specgate.pool={pool}",
        **settings.env,
    }
    return settings.model_copy(update={"engine_args": args, "env": env})
