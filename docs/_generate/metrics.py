"""Every metric of the gateway, as its Prometheus exporter shows it.

The instruments are created and fed by introspection rather than by name: every counter is counted once, every method
that takes only numbers and text is called once, every gauge observes one sample. What the exporter then shows has the
names, labels and descriptions that `GET /metrics` has.
"""

import dataclasses
import inspect
import typing
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any
from unittest import mock

from opentelemetry import metrics as api
from opentelemetry.sdk.metrics import Meter
from prometheus_client import REGISTRY

from docs._generate.markdown import code, table
from serve.access.key_ring import KeyRing
from serve.access.metrics import KeyMetrics
from serve.config.compiled_policy import compile_for
from serve.config.gateway import GatewayConfig
from serve.config.rate_limits import Limits, RateLimitsConfig
from serve.gateway.metrics import ReplicaMetrics, Vitals
from serve.gateway.pools import build_pools
from serve.gateway.scale import Scale
from serve.guard import metrics as attempt_metrics
from serve.http1.allowance import Allowance
from serve.limits.accounts import Accounts
from serve.limits.actor import connect
from serve.limits.metrics import LimitMetrics
from serve.load.live_load import LiveLoad
from serve.load.metrics import LoadMetrics
from serve.telemetry.instruments import Telemetry

_SAMPLES: dict[Any, Any] = {float: 0.0, int: 1, str: "sample", bool: True}
_CELL = {
    "model": "m", "pool": "p", "speculative": True, "request_class": "plain", "status": "serving", "clean_rate": 1.0,
    "bad_rate_at_most": 0.0, "bad_rate_at_least": 0.0,
}  # fmt: skip

_CONFIG = GatewayConfig.parse(
    {
        "models": {
            "m": {"family": "qwen3", "grammar": "hermes", "pools": {"p": {"kind": "remote", "url": "http://unused"}}}
        },
        "policy": {"load": "observe"},
    }
)


@dataclasses.dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes:
        name: As `GET /metrics` shows it.
    """

    name: str
    type: str
    labels: tuple[str, ...]
    description: str


def metrics() -> list[Metric]:
    """Returns every metric of the gateway, sorted by name."""
    callbacks: list[Callable[..., Any]] = []
    create_counter = Meter.create_observable_counter

    def create_and_note(meter: Meter, name: str, functions: Any = None, *args: Any, **options: Any) -> Any:
        callbacks.extend(functions or ())
        return create_counter(meter, name, functions, *args, **options)

    with mock.patch.object(Meter, "create_observable_counter", create_and_note):
        telemetry = Telemetry(environ={})
        for cls in _classes_with_a_meter(attempt_metrics):
            cls(telemetry.meter, lambda: [_CELL])
    LoadMetrics(telemetry.meter, _sample_load())
    LimitMetrics(telemetry.meter, _sample_accounts())
    _sample_replica(telemetry.meter)
    KeyMetrics(telemetry.meter, KeyRing())
    try:
        for callback in callbacks:
            _count_once(callback.__self__)  # type: ignore[attr-defined]
        _call_with_samples(telemetry)
        return sorted(_exported(), key=lambda metric: metric.name)
    finally:
        telemetry.shutdown()


def metrics_table() -> str:
    """Returns the table of the reference page."""
    rows = [
        (code(metric.name), metric.type, ", ".join(map(code, metric.labels)), metric.description)
        for metric in metrics()
    ]
    return table(("metric", "type", "labels", "meaning"), rows)


def _classes_with_a_meter(module: ModuleType) -> Iterator[type]:
    for value in vars(module).values():
        own = inspect.isclass(value) and value.__module__ == module.__name__
        if own and "meter" in inspect.signature(value).parameters:
            yield value


def _sample_load() -> LiveLoad:
    """Returns a load with a sample of everything that it shows."""
    load = LiveLoad(_CONFIG, compile_for(_CONFIG))
    load.moves["m", "p", "p"] = 1
    load._learned.acceptance(("m", "p"), "plain", 0, True).learn(1, 1)
    return load


def _sample_replica(meter: api.Meter) -> None:
    """Shows a replica with one pool."""
    vitals = Vitals(Allowance(), lambda: None, lambda: 0.0)
    ReplicaMetrics(meter, Scale(_CONFIG), build_pools(_CONFIG, {}, 1), vitals).loop_lagged(0.0)


def _sample_accounts() -> Accounts:
    """Returns accounts with a sample of everything that they show."""
    accounts = Accounts(RateLimitsConfig(), connect(None, None))
    accounts.tally.tokens["t", "m", "input"] = 1
    accounts.tally.used["t", "tokens"] = 1.0
    accounts.tally.limits["t"] = Limits(concurrency=1, tokens_per_month=1)
    accounts.tally.refused["t", "tokens", "enforced"] = 1
    return accounts


def _count_once(counter: Any) -> None:
    """Counts one event; the counter's only tuple of names is that of its labels."""
    tuples = [value for value in vars(counter).values() if isinstance(value, tuple)]
    labels = next(value for value in tuples if all(isinstance(name, str) for name in value))
    counter.add(*labels)


def _call_with_samples(telemetry: Telemetry) -> None:
    """Calls every method that takes nothing but numbers and text, so that histograms have their labels."""
    for name, method in inspect.getmembers(telemetry, inspect.ismethod):
        hints = typing.get_type_hints(method)
        hints.pop("return", None)
        if not name.startswith("_") and hints and all(hint in _SAMPLES for hint in hints.values()):
            method(**{parameter: _SAMPLES[hint] for parameter, hint in hints.items()})


def _exported() -> Iterator[Metric]:
    for family in REGISTRY.collect():
        if not family.name.startswith("specgate"):
            continue
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = dict.fromkeys(label for sample in family.samples for label in sample.labels)
        for of_the_exporter in ("le", "otel_scope_name", "otel_scope_version", "otel_scope_schema_url"):
            labels.pop(of_the_exporter, None)
        yield Metric(name, family.type, tuple(labels), family.documentation)
