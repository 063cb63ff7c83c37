"""How many replicas a pool asks for."""

from types import SimpleNamespace
from typing import Any

import pytest

from serve.app import build
from serve.autoscaling import ONGOING, by_ongoing_requests
from serve.config import GatewayConfig
from serve.errors import ConfigError


def context(running: dict[str, float] | None, waiting: float | None, target: float = 4) -> Any:
    return SimpleNamespace(
        aggregated_metrics=None if running is None else {ONGOING: running},
        total_queued_requests=waiting,
        config=SimpleNamespace(get_target_ongoing_requests=lambda: target),
    )


@pytest.mark.parametrize(
    ("running", "waiting", "wanted"),
    [({"a": 4, "b": 2}, 2, 2), ({"a": 4}, 0, 1), ({"a": 0}, 0, 0), (None, None, 0), (None, 9, 2.25)],
)
def test_what_runs_and_what_waits_count_alike(running: Any, waiting: float | None, wanted: float) -> None:
    assert by_ongoing_requests(context(running, waiting))[0] == wanted


def pool(**settings: Any) -> dict[str, Any]:
    return {"models": {"m": {"family": "sim", "grammar": "hermes", "pools": {"p": {"kind": "sim", **settings}}}}}


def test_ray_serve_gets_the_limits_and_our_policy() -> None:
    scaling = {"min_replicas": 1, "initial_replicas": 2, "max_replicas": 3, "target_ongoing_requests": 5}
    application = build(GatewayConfig.parse(pool(autoscaling=scaling)))
    (deployment,) = (each for _, _, each in application._bound_deployment.init_args[1])
    given = deployment._bound_deployment._deployment_config.autoscaling_config
    assert scaling.items() <= given.model_dump().items()
    assert given.policy.policy_function == "serve.autoscaling:by_ongoing_requests"


@pytest.mark.parametrize("initial", [0, 4])
def test_a_start_outside_the_limits_is_refused(initial: int) -> None:
    scaling = {"min_replicas": 1, "initial_replicas": initial, "max_replicas": 3}
    with pytest.raises(ConfigError, match="initial_replicas"):
        GatewayConfig.parse(pool(autoscaling=scaling))
