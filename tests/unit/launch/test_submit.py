"""One Serve config as the applications that Ray Serve versions on their own."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from ray.serve.schema import ServeDeploySchema

from serve.errors import ConfigError
from serve.launch.submit import serve_document, split_applications


def document() -> dict[str, Any]:
    pools = {
        "fast": {"kind": "sim", "sim": {"num_speculative_tokens": 3}},
        "slow": {"kind": "sim"},
        "far": {"kind": "remote", "url": "http://192.0.2.1:8000"},
    }
    args = {"models": {"m": {"family": "sim", "grammar": "hermes", "pools": pools}}}
    application = {"name": "specgate", "route_prefix": "/", "import_path": "serve.app:build", "args": args}
    return {"http_options": {"port": 8000}, "applications": [application]}


def applications(sent: dict[str, Any]) -> dict[str, Any]:
    return {each["name"]: each for each in split_applications(sent)["applications"]}


def test_the_gateway_and_each_pool_of_the_cluster_are_applications() -> None:
    found = applications(document())
    assert {name: each["import_path"] for name, each in found.items()} == {
        "specgate": "serve.app:build_gateway",
        "m--fast": "serve.app:build_pool",
        "m--slow": "serve.app:build_pool",
    }
    assert [name for name, each in found.items() if each["route_prefix"]] == ["specgate"]
    assert split_applications(document())["http_options"] == {"port": 8000}


def test_a_change_of_one_pool_changes_its_application_and_the_gateways_alone() -> None:
    changed = copy.deepcopy(document())
    changed["applications"][0]["args"]["models"]["m"]["pools"]["fast"]["sim"]["num_speculative_tokens"] = 4
    before, after = applications(document()), applications(changed)
    assert {name for name in before if before[name] != after[name]} == {"specgate", "m--fast"}


def test_what_only_the_policy_goes_by_changes_no_engine() -> None:
    changed = copy.deepcopy(document())
    args = changed["applications"][0]["args"]
    args["policy"] = {"mode": "advise"}
    args["models"]["m"] |= {"version": "2", "guard": {"mode": "observe"}}
    args["models"]["m"]["pools"]["fast"] |= {"canary_share": 0.5, "proven": ["plain"], "facts": {"drafter": "x"}}
    before, after = applications(document()), applications(changed)
    assert {name for name in before if before[name] != after[name]} == {"specgate"}


IN_PLACE: dict[str, Any] = {
    "replicas": 2, "max_ongoing_requests": 3, "max_queued_requests": 4, "graceful_shutdown_timeout_s": 5,
    "health_check_period_s": 6, "health_check_timeout_s": 7,
}  # fmt: skip


@pytest.mark.parametrize("setting", IN_PLACE)
def test_what_ray_changes_in_place_is_no_argument_of_any_application(setting: str) -> None:
    changed = copy.deepcopy(document())
    changed["applications"][0]["args"]["models"]["m"]["pools"]["fast"][setting] = IN_PLACE[setting]
    before, after = applications(document()), applications(changed)
    assert {name: each["args"] for name, each in before.items()} == {name: each["args"] for name, each in after.items()}
    (options,) = after["m--fast"]["deployments"]
    assert options[{"replicas": "num_replicas"}.get(setting, setting)] == IN_PLACE[setting]


def test_the_gateway_is_told_what_pools_should_have_and_keeps_what_the_operator_tells_it() -> None:
    changed = copy.deepcopy(document())
    pools = changed["applications"][0]["args"]["models"]["m"]["pools"]
    pools["fast"]["replicas"] = 2
    pools["slow"]["autoscaling"] = {"min_replicas": 0, "max_replicas": 4}
    changed["applications"][0]["deployments"] = [{"name": "Gateway", "user_config": {"policy": {"mode": "advise"}}}]
    (options,) = applications(changed)["specgate"]["deployments"]
    reply = {"least_replicas": {"m": {"fast": 2, "slow": 0}}, "policy": {"mode": "advise"}}
    assert options["user_config"] == reply
    assert applications(changed)["specgate"]["args"] == applications(document())["specgate"]["args"]


def test_the_gateway_is_told_of_replicas_that_a_deployment_states_itself() -> None:
    changed = copy.deepcopy(document())
    changed["applications"][0]["deployments"] = [
        {"name": "m--fast", "num_replicas": 5},
        {"name": "m--slow", "num_replicas": "auto", "autoscaling_config": {"min_replicas": 0, "max_replicas": 4}},
    ]
    (options,) = applications(changed)["specgate"]["deployments"]
    assert options["user_config"]["least_replicas"] == {"m": {"fast": 5, "slow": 0}}


def test_the_limits_of_a_growing_pool_change_in_place_too() -> None:
    def growing(to: int) -> dict[str, Any]:
        said = document()
        said["applications"][0]["args"]["models"]["m"]["pools"]["fast"]["autoscaling"] = {"max_replicas": to}
        return applications(said)["m--fast"]

    assert growing(3)["args"] == growing(4)["args"]
    (options,) = growing(4)["deployments"]
    assert (options["num_replicas"], options["autoscaling_config"]["max_replicas"]) == ("auto", 4)


def test_more_gateways_replace_none_and_what_one_must_know_itself_does() -> None:
    def gateway(**settings: int) -> dict[str, Any]:
        said = document()
        said["applications"][0]["args"] |= settings
        return applications(said)["specgate"]

    assert gateway(replicas=2, graceful_shutdown_timeout_s=9)["args"] == gateway()["args"]
    assert gateway(replicas=2)["deployments"][0]["num_replicas"] == 2
    assert gateway(max_ongoing_requests=9)["args"] != gateway()["args"]


def test_options_of_a_deployment_reach_it_and_outweigh_ours() -> None:
    said = document()
    said["applications"][0]["deployments"] = [
        {"name": "Gateway", "user_config": {"version": 2}},
        {"name": "m--slow", "num_replicas": 5},
    ]
    found = applications(said)
    assert found["specgate"]["deployments"][0]["user_config"]["version"] == 2
    assert found["m--slow"]["deployments"][0]["num_replicas"] == 5
    assert found["m--fast"]["deployments"][0]["num_replicas"] == 1


def test_options_of_a_deployment_that_there_is_not_are_refused() -> None:
    said = document()
    said["applications"][0]["deployments"] = [{"name": "gateway"}]
    with pytest.raises(ConfigError, match="names gateway; there are Gateway, m--fast, m--slow"):
        split_applications(said)


@pytest.mark.parametrize(
    ("update", "says"),
    [
        ({"least_replicas": {"m": {"fats": 0}}}, "there is no pool m/fats; there are m/fast, m/slow, m/far"),
        ({"least_replicas": {"m": {"fast": -1}}}, "greater than or equal to 0"),
        ({"polici": {}}, "unknown keys"),
        ({"policy": {"mode": "enforced"}}, "mode"),
    ],
)
def test_what_the_gateway_would_refuse_of_its_update_is_refused(
    tmp_path: Path, update: dict[str, Any], says: str
) -> None:
    said = document()
    said["applications"][0]["deployments"] = [{"name": "Gateway", "user_config": update}, {"name": "m--fast"}]
    path = tmp_path / "serve.yaml"
    path.write_text(json.dumps(said))
    with pytest.raises(ConfigError, match=says):
        serve_document(path)
    said["applications"][0]["deployments"][0]["user_config"] = {"least_replicas": {"m": {"fast": 0}}}
    path.write_text(json.dumps(said))
    assert serve_document(path) == said


def test_ray_takes_it() -> None:
    said = document()
    said["applications"][0]["args"]["models"]["m"]["pools"]["fast"]["autoscaling"] = {"max_replicas": 3}
    ServeDeploySchema.model_validate(split_applications(said))


def test_what_is_said_of_the_application_holds_for_each() -> None:
    said = document()
    said["applications"][0]["logging_config"] = {"encoding": "JSON"}
    assert all(each["logging_config"] == {"encoding": "JSON"} for each in applications(said).values())


def test_the_limits_of_a_remote_pool_reach_the_gateway_because_no_deployment_has_them() -> None:
    said = document()
    said["applications"][0]["args"]["models"]["m"]["pools"]["far"]["max_ongoing_requests"] = 7
    assert applications(said)["specgate"]["args"]["models"]["m"]["pools"]["far"]["max_ongoing_requests"] == 7
