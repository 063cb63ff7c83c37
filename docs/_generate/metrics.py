"""Every metric of the gateway, as its parts declare them."""

from docs._generate.markdown import code, table
from serve.access.key_ring import KeyRing
from serve.access.metrics import show_keys
from serve.config.compiled_policy import compile_for
from serve.config.gateway import GatewayConfig
from serve.config.rate_limits import RateLimitsConfig
from serve.gateway.metrics import ReplicaMetrics, Vitals
from serve.gateway.pools import build_pools
from serve.gateway.scale import Scale
from serve.guard.metrics import ResultMetrics
from serve.http1.allowance import Allowance
from serve.limits.accounts import Accounts
from serve.limits.actor import connect
from serve.limits.metrics import show_limits
from serve.load.live_load import LiveLoad
from serve.load.metrics import show_load
from serve.telemetry.instruments import Telemetry
from serve.telemetry.metrics import Declared

_CONFIG = GatewayConfig.parse(
    {
        "models": {
            "m": {"family": "qwen3", "grammar": "hermes", "pools": {"p": {"kind": "remote", "url": "http://unused"}}}
        },
        "policy": {"load": "observe"},
    }
)


def declared() -> list[Declared]:
    """Returns every metric of the gateway, sorted by name."""
    telemetry = Telemetry(environ={})
    metrics = telemetry.metrics
    ResultMetrics(metrics, list)
    show_load(metrics, LiveLoad(_CONFIG, compile_for(_CONFIG)))
    show_limits(metrics, Accounts(RateLimitsConfig(), connect(None, None)))
    show_keys(metrics, KeyRing())
    vitals = Vitals(Allowance(), lambda: None, lambda: 0.0)
    ReplicaMetrics(metrics, Scale(_CONFIG), build_pools(_CONFIG, {}, 1), vitals)
    telemetry.shutdown()
    return sorted(metrics.declared)


def metrics_table() -> str:
    """Returns the table of the reference page."""
    rows = [
        (code(metric.name), metric.type, ", ".join(map(code, metric.labels)), metric.description)
        for metric in declared()
    ]
    return table(("metric", "type", "labels", "meaning"), rows)
