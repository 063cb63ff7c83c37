"""What engines sent for requests that were rerun: kept where it is configured, for keys with `content`, and audited."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support.admin_api import Ports, serving
from support.guard_harness import tools_request
from support.guard_stack import KNOWN, NO_ADVISORIES, SPECULATES
from support.stack import listening

from lab.sim import SimSettings, build_sim_app
from serve.access.principal import Principal, Tenant
from serve.config.access import RIGHTS
from serve.errors import InvalidApiKeyError
from serve.guard import transcript

SIM: dict[str, Any] = {"model": "m", "grammar": "qwen3_coder"}


def keys(headers: Mapping[str, str]) -> Principal:
    """Keys that are named after their scope."""
    scope = headers.get("authorization", "").removeprefix("Bearer ")
    if scope not in RIGHTS:
        raise InvalidApiKeyError("This API key is not valid here.")
    return Principal(f"key-{scope}", Tenant("team"), frozenset({scope}))


@asynccontextmanager
async def reruns(audit: Path, keeps: bool = True) -> AsyncIterator[Ports]:
    """A gateway whose first pool cuts every call short."""
    broken = SimSettings(**SIM, num_speculative_tokens=3, faults={"truncated_string": 1.0})
    async with listening(build_sim_app(broken)) as fast, listening(build_sim_app(SimSettings(**SIM))) as standard:
        pools = {
            "fast": {"kind": "remote", "url": fast.url, "facts": SPECULATES},
            "standard": {"kind": "remote", "url": standard.url, "facts": KNOWN},
        }
        config = {
            "models": {"m": {"family": "sim", "grammar": "qwen3_coder", "pools": pools}},
            "policy": {"advisories": NO_ADVISORIES},
            "quarantine": {"reference_share": 0},
            "admin": {"rerun_content": keeps},
        }
        async with serving(config, authenticate=keys, audit=audit) as ports:
            yield ports


async def ask(ports: Ports, request_id: str = "", **more: Any) -> tuple[str, bytes]:
    """Returns a request's id, which may be the client's, and what the client got."""
    headers = {"x-request-id": request_id} if request_id else {}
    body = tools_request(model="m", **more)
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{ports.data}/v1/chat/completions", json=body, headers=headers) as response,
    ):
        assert response.status == 200
        return response.headers["x-request-id"], await response.read()


async def look(ports: Ports, request_id: str, key: str = "content") -> tuple[int, Any]:
    headers = {"authorization": f"Bearer {key}"}
    query = {"request_id": request_id}
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{ports.admin_api}/admin/v1/rerun", params=query, headers=headers) as response,
    ):
        return response.status, await response.json()


def audited(folder: Path) -> list[tuple[str, str, str]]:
    lines = [json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]
    return [(line["key"], line["action"], line["object"]) for line in lines]


@pytest.mark.parametrize("stream", [True, False])
async def test_it_shows_what_each_engine_sent_what_was_wrong_and_what_the_client_got(
    stream: bool, tmp_path: Path
) -> None:
    async with reruns(tmp_path) as ports:
        request_id, answer = await ask(ports, stream=stream)
        status, reply = await look(ports, request_id)
    assert status == 200
    first, second = reply["attempts"]
    assert (first["pool"], first["speculative"], first["outcome"]) == ("fast", True, "truncated")
    assert first["defects"] == ["arguments end early"]
    assert (second["pool"], second["outcome"], second["defects"]) == ("standard", "clean", [])
    assert "tool_calls" in first["text"]
    assert first["text"] != second["text"]
    assert reply["client"] == {"text": answer.decode(), "missing_bytes": 0}


async def test_each_look_is_a_line_of_the_audit_log(tmp_path: Path) -> None:
    async with reruns(tmp_path) as ports:
        request_id, _ = await ask(ports)
        assert audited(tmp_path) == []
        for _ in range(2):
            await look(ports, request_id)
    assert audited(tmp_path) == [("key-content", "content.read", f"rerun of request {request_id}")] * 2


async def test_a_client_that_takes_the_id_of_another_request_does_not_take_its_place(tmp_path: Path) -> None:
    async with reruns(tmp_path) as ports:
        request_id, answer = await ask(ports, stream=True)
        await ask(ports, request_id, stream=False)
        _, reply = await look(ports, request_id)
    assert reply["client"]["text"] == answer.decode()


@pytest.mark.parametrize("scope", sorted(RIGHTS - {"content"}))
async def test_no_other_scope_opens_it(scope: str, tmp_path: Path) -> None:
    async with reruns(tmp_path) as ports:
        request_id, _ = await ask(ports)
        status, reply = await look(ports, request_id, scope)
    assert (status, reply["error"]["code"]) == (403, "insufficient_scope")
    assert audited(tmp_path) == [(f"key-{scope}", "refused", "GET /admin/v1/rerun")]


async def test_nothing_is_kept_unless_it_is_configured(tmp_path: Path) -> None:
    async with reruns(tmp_path, keeps=False) as ports:
        request_id, _ = await ask(ports)
        assert (await look(ports, request_id))[0] == 404
    assert audited(tmp_path) == []


async def test_the_oldest_are_forgotten_and_of_long_answers_the_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transcript, "MOST", 2)
    monkeypatch.setattr(transcript, "MOST_BYTES", 100)
    async with reruns(tmp_path) as ports:
        asked = [await ask(ports, seed=seed, stream=True) for seed in range(3)]
        assert [(await look(ports, request_id))[0] for request_id, _ in asked] == [404, 200, 200]
        _, reply = await look(ports, asked[-1][0])
    answer = asked[-1][1]
    assert reply["client"] == {"text": answer[-100:].decode(errors="replace"), "missing_bytes": len(answer) - 100}
