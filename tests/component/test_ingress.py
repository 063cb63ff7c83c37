"""A gateway replica's routes around the hot path, and its live policy, without Ray."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from support.engines import Engine, answering
from support.stack import listening

from serve.config.compiled_policy import SHIPPED_ADVISORIES
from serve.errors import ConfigError
from serve.gateway.ingress import GatewayReplica
from serve.load.live_load import LiveLoad

ADVISORIES = Path(__file__).parents[1] / "support" / "advisories"
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
FORBID: dict[str, Any] = {"action": "forbid", "reason": "not proven", "pool": "speculative"}


def config(url: str, policy: dict[str, Any]) -> dict[str, Any]:
    settings = {"rejection_sample_method": "standard"}
    facts = {"engine": "vllm", "engine_version": "0.32.0", "method": "draft_model", "settings": settings}
    speculative = {"kind": "remote", "url": url, "facts": facts}
    standard = {"kind": "remote", "url": url, "facts": {"engine": "vllm", "engine_version": "0.32.0", "method": "none"}}
    pools = {"speculative": speculative, "standard": standard}
    return {"models": {"m": {"family": "qwen3", "grammar": "hermes", "pools": pools}}, "policy": policy}


@asynccontextmanager
async def replica(engine: Engine, **policy: Any) -> AsyncIterator[tuple[GatewayReplica, str]]:
    async with listening(engine) as behind:
        gateway = GatewayReplica(config(behind.url, {"advisories": str(ADVISORIES), **policy}), [])
        async with listening(gateway.app(), gateway.hot) as front:
            yield gateway, front.url


async def fetch(url: str, body: Any = None) -> tuple[int, dict[str, str], Any]:
    async with (
        aiohttp.ClientSession() as session,
        session.request("GET" if body is None else "POST", url, json=body) as response,
    ):
        return response.status, {k.lower(): v for k, v in response.headers.items()}, await response.json()


async def policy_of(gateway: GatewayReplica) -> dict[str, Any]:
    async with listening(gateway.operators_app()) as operators:
        policy: dict[str, Any] = (await fetch(f"{operators.url}/admin/v1/policy"))[2]
    return policy


async def test_the_hot_route_is_plain_asgi_inside_the_app() -> None:
    async with replica(answering()) as (_, url):
        status, headers, _ = await fetch(f"{url}/v1/chat/completions", CHAT)
    assert (status, headers["x-specgate-pool"]) == (200, "speculative")


async def test_explain_says_where_its_evidence_comes_from() -> None:
    engine = answering()
    async with replica(engine, overrides=[FORBID]) as (_, url):
        status, headers, body = await fetch(f"{url}/v1/route/explain", CHAT)
    assert (status, body["pool"], body["refused"]) == (200, "standard", False)
    assert headers["x-specgate-evidence"].startswith("evidence=")
    assert not engine.requests


async def test_explain_reads_the_body_of_the_api_that_the_query_names() -> None:
    body = {**CHAT, "model": f"{CHAT['model']}:nospec", "max_tokens": 9, "system": "Be brief."}
    async with replica(answering()) as (_, url):
        status, _, explanation = await fetch(f"{url}/v1/route/explain?api=messages", body)
        unknown, _, error = await fetch(f"{url}/v1/route/explain?api=soap", body)
    assert (status, explanation["speculative"]) == (200, False)
    assert (unknown, error["error"]["param"]) == (400, "api")


async def test_explain_answers_a_wrong_request_as_the_live_route_does() -> None:
    async with replica(answering()) as (_, url):
        status, _, body = await fetch(f"{url}/v1/route/explain", {**CHAT, "model": "nope"})
    assert (status, body["error"]["code"]) == (404, "model_not_found")


async def test_a_new_policy_is_adopted_while_serving() -> None:
    async with replica(answering()) as (gateway, url):
        before = (await policy_of(gateway))["digest"]
        gateway.reconfigure({"policy": {"advisories": str(ADVISORIES), "overrides": [FORBID]}})
        _, headers, _ = await fetch(f"{url}/v1/chat/completions", CHAT)
        after = await policy_of(gateway)
    assert headers["x-specgate-pool"] == "standard"
    assert after["digest"] != before
    assert after["refused_update"] is None


@pytest.mark.parametrize(
    ("update", "message"),
    [
        ({"policy": {"mode": "enforced"}}, "mode"),
        ({"policy": {"overrides": [{"action": "waive", "reason": "x"}]}}, "waive"),
        ({"policy": {"advisories": "/nowhere"}}, "nowhere"),
        ({"polici": {}}, "polici"),
        ({"policy": {"load": "route"}}, "only at the start"),
    ],
)
async def test_a_bad_policy_is_refused_with_its_reason_and_the_old_one_stays(update: Any, message: str) -> None:
    async with replica(answering(), overrides=[FORBID]) as (gateway, url):
        before = (await policy_of(gateway))["digest"]
        gateway.reconfigure(update)
        body = await policy_of(gateway)
        _, headers, _ = await fetch(f"{url}/v1/chat/completions", CHAT)
    assert body["digest"] == before
    assert message in body["refused_update"]
    assert headers["x-specgate-pool"] == "standard"


async def test_load_goes_from_observing_to_routing_without_a_restart() -> None:
    async with replica(answering(), load="observe") as (gateway, _):
        for load, routes in (("route", True), ("observe", False), ("off", False)):
            gateway.reconfigure({"policy": {"advisories": str(ADVISORIES), "load": load}})
            assert isinstance(gateway.load, LiveLoad)
            assert gateway.load.routes is routes
            assert gateway.updates.refused is None


async def test_an_unreadable_advisory_refuses_the_update(tmp_path: Path) -> None:
    (tmp_path / "broken.yaml").write_text("id: [")
    async with replica(answering()) as (gateway, _):
        gateway.reconfigure({"policy": {"advisories": str(tmp_path)}})
        body = await policy_of(gateway)
    assert "broken" in body["refused_update"]


async def test_ready_is_200_when_every_pool_answers() -> None:
    async with replica(answering()) as (_, url):
        status, _, body = await fetch(f"{url}/ready")
    assert (status, body["ready"], set(body["pools"])) == (200, True, {"m/speculative", "m/standard"})


async def test_a_missing_key_of_a_remote_pool_is_told_at_the_start() -> None:
    args = config("http://x", {})
    args["models"]["m"]["pools"]["standard"]["api_key_env"] = "SPECGATE_TEST_NO_SUCH_KEY"
    with pytest.raises(ConfigError, match="SPECGATE_TEST_NO_SUCH_KEY is not set"):
        GatewayReplica(json.loads(json.dumps(args)), [])


async def adopted(gateway: GatewayReplica, refused: bool, digest: str) -> dict[str, Any]:
    """Waits until another policy is in force, or one was refused; pytest's own time limit ends the wait."""
    while True:
        policy = await policy_of(gateway)
        if policy["digest"] != digest if not refused else policy["refused_update"]:
            return policy
        await asyncio.sleep(0.01)


def write_advisory(folder: Path, name: str, **changes: Any) -> None:
    shipped = (SHIPPED_ADVISORIES / "sampling-refused-by-speculation.yaml").read_text()
    values = {**yaml.safe_load(shipped), "id": name, **changes}
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(values))


async def test_a_new_advisory_in_the_folder_takes_effect_and_a_broken_one_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serve.gateway.policy_updates.PERIOD_S", 0.02)
    write_advisory(tmp_path, "first")
    async with replica(answering(), advisories=str(tmp_path)) as (gateway, url):
        start = await policy_of(gateway)
        _, headers, _ = await fetch(f"{url}/v1/chat/completions", CHAT)
        assert headers["x-specgate-pool"] == "speculative"

        write_advisory(tmp_path, "second", unsafe=["any"])
        policy = await adopted(gateway, False, start["digest"])
        # One more than the folder holds: what is due since an engine may be newer than all that was checked.
        assert (policy["advisories"], policy["refused_update"]) == (3, None)
        _, headers, _ = await fetch(f"{url}/v1/chat/completions", CHAT)
        assert headers["x-specgate-pool"] == "standard"

        (tmp_path / "third.yaml").write_text("{")
        write_advisory(tmp_path, "fourth", unsafe=["plain"])
        refused = await adopted(gateway, True, policy["digest"])
        assert "third" in refused["refused_update"]
        assert (refused["digest"], refused["advisories"]) == (policy["digest"], 3)
        # What engines report compiles the policy again: with the advisories in force, not with those in the folder.
        gateway.updates.learn({("m", "speculative"): {"engine_version": "0.32.0"}})
        assert (await policy_of(gateway))["advisories"] == 3

        (tmp_path / "third.yaml").unlink()
        mended = await adopted(gateway, False, policy["digest"])
        assert (mended["advisories"], mended["refused_update"]) == (4, None)


async def test_the_shipped_advisories_are_not_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []
    monkeypatch.setattr("serve.gateway.policy_updates.stamp_of", looked.append)
    async with replica(answering(), advisories=None) as (gateway, _):
        await policy_of(gateway)
    assert not looked
