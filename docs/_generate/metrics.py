"""Every metric of the gateway, as its parts declare them."""

from docs._generate.markdown import code, table
from serve.admin.merged_metrics import AUDIT_FAILING
from serve.gateway.ingress import GatewayReplica
from serve.telemetry.metrics import Declared

_POOL = {"kind": "remote", "url": "http://unused"}
_ALL_ON = {
    "models": {
        "m": {"family": "qwen3", "grammar": "hermes", "pools": {"p": _POOL, "q": _POOL}, "shadow": {"pool": "q"}}
    },
    "policy": {"load": "observe"},
    "quarantine": {"enabled": True},
    "echo_canary": {},
    "rate_limits": {"enabled": True},
}


_SUFFIX = {"histogram": " (histogram)"}


def declared() -> list[Declared]:
    """Returns every metric of the gateway and the admin API, sorted by name."""
    telemetry = GatewayReplica(_ALL_ON, []).telemetry
    telemetry.shutdown()
    return sorted([*telemetry.metrics.declared, AUDIT_FAILING])


def metrics_table() -> str:
    """Returns the table of the reference page."""
    rows = [
        (code(metric.name), ", ".join(map(code, metric.labels)), metric.description + _SUFFIX.get(metric.type, ""))
        for metric in declared()
    ]
    return table(("metric", "labels", "meaning"), rows)
