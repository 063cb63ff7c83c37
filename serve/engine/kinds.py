"""The kinds of pools that run in the cluster: vLLM's, traced where the gateway is, and those of other distributions."""

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any, NamedTuple

from serve.config.pool import ModelConfig, PoolConfig
from serve.errors import ConfigError

_GROUP = "specgate.pool_kinds"
_ENDPOINT = "otlp-traces-endpoint"


class PoolKind(NamedTuple):
    """One kind of pool.

    Attributes:
        check: Checks the settings of a pool by the engine's own rules: gets the model's name, the model and the pool's
            name, and raises `ConfigError`.
    """

    replica: type[Any]
    check: Callable[[str, ModelConfig, str], None]


def _check_vllm(name: str, model: ModelConfig, pool: str) -> None:
    from serve.engine.vllm.host import parse_args

    parse_args(model.engine_args_of(pool), (name, *model.exact_aliases), "key")


def kind_of(name: str) -> PoolKind:
    """Returns a kind of pool. Its name is as in a pool's `kind`, other than `remote`.

    Raises:
        ConfigError: The distribution that brings it is not installed.
    """
    if name == "vllm":
        from serve.engine.replica import VllmReplica  # imports Ray, which reads its environment at that moment

        return PoolKind(VllmReplica, _check_vllm)
    for entry_point in entry_points(group=_GROUP, name=name):
        kind: PoolKind = entry_point.load()
        return kind
    raise ConfigError(f"pools of kind {name!r} need the package specgate-lab; in a checkout: pip install ./lab")


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
