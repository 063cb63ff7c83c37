"""One Serve config as the applications that Ray Serve versions on their own."""

import copy
from typing import Any

from serve.launch.submit import apart


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
    return {each["name"]: each for each in apart(sent)["applications"]}


def test_the_gateway_and_each_pool_of_the_cluster_are_applications() -> None:
    found = applications(document())
    assert {name: each["import_path"] for name, each in found.items()} == {
        "specgate": "serve.app:build_gateway",
        "m--fast": "serve.app:build_pool",
        "m--slow": "serve.app:build_pool",
    }
    assert [name for name, each in found.items() if each["route_prefix"]] == ["specgate"]
    assert apart(document())["http_options"] == {"port": 8000}


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


def test_what_is_said_of_the_application_holds_for_each() -> None:
    said = document()
    said["applications"][0]["logging_config"] = {"encoding": "JSON"}
    assert all(each["logging_config"] == {"encoding": "JSON"} for each in applications(said).values())
