"""A replica's routes beside the completions, without sockets: models, readiness, explanations, and the admin API's."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fastapi
import httpx
import pytest

from serve import VERSION
from serve.dialects.api import DIALECTS
from serve.gateway import endpoints
from serve.gateway.ingress import GatewayReplica

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
URL = "http://192.0.2.1:8000"
POOLS = {
    "fast": {"kind": "remote", "url": URL, "facts": {"settings": {"max_model_len": 4096}}},
    "safe": {"kind": "remote", "url": URL},
}


def replica(**settings: Any) -> GatewayReplica:
    model = {"family": "qwen3", "grammar": "hermes", "aliases": ["org/m"], "pools": POOLS}
    return GatewayReplica({"models": {"m": model}, **settings}, [])


async def ask(
    app: fastapi.FastAPI, path: str, body: Any = None, headers: Mapping[str, str] | None = None
) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
        return await client.request("GET" if body is None else "POST", path, json=body, headers=headers)


async def test_models_are_listed_with_the_shortest_context_that_is_known() -> None:
    [model] = (await ask(replica().app(), "/v1/models")).json()["data"]
    assert (model["id"], model["owned_by"], model["max_model_len"]) == ("m", "specgate", 4096)


async def test_what_an_engine_reports_later_is_its_context() -> None:
    served = replica()
    served.updates.learn({("m", "fast"): {"max_model_len": 9000}, ("m", "safe"): {"max_model_len": 8000}})
    assert (await ask(served.app(), "/v1/models/m")).json()["max_model_len"] == 8000


@pytest.mark.parametrize("name", ["m", "org/m", "org%2Fm", "m:nospec", "org/m:nospec"])
async def test_a_model_is_found_by_each_of_its_names(name: str) -> None:
    assert (await ask(replica().app(), f"/v1/models/{name}")).json()["id"] == "m"


async def test_an_unknown_model_is_refused_in_the_clients_own_api() -> None:
    app = replica().app()
    chat = await ask(app, "/v1/models/other")
    assert (chat.status_code, chat.json()["error"]["code"]) == (404, "model_not_found")
    listed = await ask(app, "/v1/models", headers={"anthropic-version": "2023-06-01"})
    assert listed.json()["data"][0]["type"] == "model"


class PanicError(BaseException):
    """Like pyo3's PanicException, which is no Exception."""


@pytest.mark.parametrize("kind", [KeyError, PanicError])
@pytest.mark.parametrize("operators", [False, True])
async def test_an_explanation_that_fails_quotes_nothing_of_its_request(
    operators: bool, kind: type[BaseException], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(body: bytes, *_: Any) -> bytes:
        raise kind(body.decode())

    monkeypatch.setattr(endpoints, "as_chat", failing)
    served = replica()
    answer = await ask(served.operators_app() if operators else served.app(), "/v1/route/explain", CHAT)
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
    assert f"an explanation failed: {kind.__name__}\n" in caplog.text
    assert "hello" not in caplog.text + answer.text


async def test_explaining_asks_no_engine_and_says_what_its_evidence_is() -> None:
    answer = await ask(replica().app(), "/v1/route/explain", CHAT)
    assert (answer.status_code, answer.json()["refused"]) == (200, False)
    assert answer.headers["x-specgate-evidence"].startswith("evidence=")
    assert "load" not in answer.json()


async def test_an_explanation_shows_the_load_only_where_it_counts() -> None:
    answer = await ask(replica(policy={"load": "observe"}).app(), "/v1/route/explain", CHAT)
    assert {each["pool"] for each in answer.json()["load"]} == {"fast", "safe"}


async def test_an_explanation_of_a_refusal_shows_it_with_load_too() -> None:
    forbidden = [{"action": "forbid", "reason": "closed", "pool": pool} for pool in POOLS]
    served = replica(policy={"load": "observe", "overrides": forbidden})
    answer = await ask(served.app(), "/v1/route/explain", CHAT)
    assert (answer.status_code, answer.json()["refused"]) == (200, True)


@pytest.mark.parametrize(("body", "status"), [({**CHAT, "model": "other"}, 404), ({"messages": []}, 400)])
async def test_explaining_refuses_what_a_completion_refuses(body: Any, status: int) -> None:
    assert (await ask(replica().app(), "/v1/route/explain", body)).status_code == status


async def test_clients_of_vllm_that_ask_for_a_version_without_a_key_learn_specgates(tmp_path: Path) -> None:
    access = {"mode": "required", "state_dir": str(tmp_path)}
    answer = await ask(replica(access=access).app(), "/version")
    assert (answer.status_code, answer.json()) == (200, {"version": VERSION})
    assert answer.headers["server"] == f"specgate/{VERSION}"


async def test_a_replica_is_ready_when_every_pool_is_up() -> None:
    answer = await ask(replica().app(), "/ready")
    assert (answer.status_code, answer.json()["pools"]) == (200, {"m/fast": "up", "m/safe": "up"})


async def test_completions_have_routes_for_a_listener_that_is_not_ours() -> None:
    served = replica()
    assert {route.path for route in served.app().routes} >= served.hot.keys()  # type: ignore[attr-defined]
    assert served.hot.keys() == {"/v1/chat/completions", "/v1/completions", *DIALECTS}


async def test_the_admin_apis_routes_are_those_of_the_parts_that_are_on() -> None:
    def paths(served: GatewayReplica) -> set[str]:
        return {route.path for route in served.operators_app().routes}  # type: ignore[attr-defined]

    always = {f"/admin/v1/{name}" for name in ("policy", "snapshot", "rerun", "request")}
    always |= {"/v1/route/explain", "/metrics"}
    assert paths(replica(quarantine={"enabled": False})) == always
    everything = replica(quarantine={"enabled": True}, rate_limits={"enabled": True})
    assert paths(everything) == {*always, "/admin/v1/quarantine", "/admin/v1/usage"}


@pytest.mark.parametrize("on", [False, True])
async def test_the_dashboards_sight_has_the_same_fields_whatever_is_on(on: bool) -> None:
    served = replica(quarantine={"enabled": on}, rate_limits={"enabled": on}, admin={"rerun_content": on})
    seen = (await ask(served.operators_app(), "/admin/v1/snapshot")).json()
    assert seen.keys() == {
        "version", "policy", "pools", "cells", "changes", "reruns", "failures", "shadows", "drafts",
        "unknown_models", "counts_usage", "rerun_content", "tenants", "queue", "samples"
    }  # fmt: skip
    assert [pool["pool"] for pool in seen["pools"]] == ["fast", "safe"]
    assert (seen["rerun_content"], seen["tenants"], seen["policy"]["refused_update"]) == (on, [], None)
    assert (await ask(served.operators_app(), "/admin/v1/rerun?request_id=r")).json() == {"data": None}


async def test_a_refused_update_shows_beside_the_policy() -> None:
    served = replica()
    served.reconfigure({"polici": {}})
    policy = (await ask(served.operators_app(), "/admin/v1/policy")).json()
    assert "polici" in policy["refused_update"]


async def test_metrics_are_those_of_the_replica() -> None:
    assert "specgate_pool_replicas" in (await ask(replica().operators_app(), "/metrics")).text


async def test_the_root_tells_a_browser_and_a_program_where_to_go_on() -> None:
    app = replica().app()
    answer = await ask(app, "/")
    assert answer.status_code == 200
    assert answer.json()["version"] == VERSION
    assert "POST /v1/chat/completions" in answer.json()["routes"]
