"""The options of each pool in Ray Serve."""

from typing import Any

import pytest

from serve.app import build, build_gateway
from serve.config.gateway import GatewayConfig
from serve.errors import ConfigError


def config(**pool: Any) -> GatewayConfig:
    pools = {"p": {"kind": "sim", **pool}}
    return GatewayConfig.parse({"models": {"a/m": {"family": "sim", "grammar": "hermes", "pools": pools}}})


def deployment(**pool: Any) -> Any:
    """The deployment of a pool with these settings."""
    ((_, _, bound),) = build(config(**pool))._bound_deployment.init_args[1]
    return bound._bound_deployment


def test_limits_and_the_drain_are_passed_on() -> None:
    limits = {"max_ongoing_requests": 7, "max_queued_requests": 8, "graceful_shutdown_timeout_s": 9}
    options = deployment(**limits, replicas=3)._deployment_config.model_dump()
    assert limits.items() <= options.items()
    assert options["num_replicas"] == 3


def test_a_slash_in_a_models_name_is_none_in_its_deployments() -> None:
    assert deployment().name == "a-m--p"


@pytest.mark.parametrize(("one", "other"), [("a/m/p", "a-m/p"), ("a--m/p", "a/m--p")])
def test_pools_that_ray_serve_would_take_for_one_are_refused(one: str, other: str) -> None:
    models = {}
    for each in (one, other):
        model, _, pool = each.rpartition("/")
        models[model] = {"family": "sim", "grammar": "hermes", "pools": {pool: {"kind": "sim"}}}
    for built in (build, build_gateway):
        with pytest.raises(ConfigError, match=f"{other} for {one}"):
            built(GatewayConfig.parse({"models": models}))


def test_a_growing_pool_has_its_limits_and_our_way_to_count() -> None:
    scaling = {"min_replicas": 1, "initial_replicas": 2, "max_replicas": 3, "target_ongoing_requests": 5}
    given = deployment(autoscaling=scaling)._deployment_config.autoscaling_config
    assert scaling.items() <= given.model_dump().items()
    assert given.policy.policy_function == "serve.routing.autoscaling:by_ongoing_requests"


@pytest.mark.parametrize("initial", [0, 4])
def test_a_start_outside_the_limits_is_refused(initial: int) -> None:
    with pytest.raises(ConfigError, match="initial_replicas"):
        config(autoscaling={"min_replicas": 1, "initial_replicas": initial, "max_replicas": 3})


def test_a_sticky_pool_is_a_ring_on_which_every_replica_is_a_fall_back() -> None:
    ring = deployment(routing="sticky")._deployment_config.request_router_config
    assert ring.request_router_class.endswith("StickyRouter")
    assert ring.request_router_kwargs["num_fallback_replicas"] > 10_000
    assert deployment()._deployment_config.request_router_config.request_router_class.endswith("BalancedRouter")


def test_a_placement_group_is_passed_on() -> None:
    bundles = [{"CPU": 1.0}, {"CPU": 2.0}]
    given = deployment(placement_group_bundles=bundles, placement_group_strategy="STRICT_SPREAD")._replica_config
    assert given.placement_group_bundles == bundles
    assert given.placement_group_strategy == "STRICT_SPREAD"


def test_nothing_of_the_builders_environment_travels_with_a_deployment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SPECGATE_KEY", "HF_TOKEN", "VLLM_API_KEY", "OTEL_EXPORTER_OTLP_HEADERS", "UNRELATED"):
        monkeypatch.setenv(name, "canary")
    gateway = build(config())._bound_deployment
    admin_api = gateway.init_args[2]._bound_deployment
    for each in (gateway, admin_api, deployment()):
        assert "canary" not in str(each.ray_actor_options)


def test_an_engine_writes_bytecode_and_follows_no_redirect_whatever_its_container_says() -> None:
    given = deployment().ray_actor_options["runtime_env"]["env_vars"]
    assert given.items() >= {"PYTHONDONTWRITEBYTECODE": "", "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0"}.items()


def test_a_pools_own_variables_outweigh_all_others() -> None:
    options = {"runtime_env": {"env_vars": {"A": "0", "VLLM_NO_USAGE_STATS": "0", "B": "1"}}}
    given = deployment(env={"A": "2"}, ray_actor_options=options).ray_actor_options["runtime_env"]["env_vars"]
    assert given.items() >= {"A": "2", "B": "1", "VLLM_NO_USAGE_STATS": "0"}.items()
