"""Operators' side of quarantine: HTTP and the command line, before a gateway replica and an admin API without Ray."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import pytest
from support.admin_api import Ports, serving
from support.engines import Engine, answering, end, start
from support.prometheus import until
from support.stack import listening
from typer.testing import CliRunner

from lab.sim import SimSettings, build_sim_app
from serve.cli import app
from serve.http1.listener import AsgiApp

ADVISORIES = Path(__file__).parents[1] / "support" / "advisories"
JSON = {"content-type": "application/json"}
FUNCTION = {"name": "f", "parameters": {"type": "object"}}
TOOLS = {
    "model": "m",
    "messages": [{"role": "user", "content": "x"}],
    "tools": [{"type": "function", "function": FUNCTION}],
}
PARAMETERS = {"type": "object", "properties": {"command": {"type": "string", "minLength": 3}}, "required": ["command"]}
CALL = {
    **TOOLS,
    "tools": [{"type": "function", "function": {"name": "f", "parameters": PARAMETERS}}],
    "tool_choice": "required",
}
CELL = {"model": "m", "pool": "speculative", "request_class": "tools_auto"}
TAKE_OUT = {**CELL, "action": "quarantine", "reason": "incident 17"}


@asynccontextmanager
async def gateway(fast: AsgiApp | None = None, safe: AsgiApp | None = None, **quarantine: Any) -> AsyncIterator[Ports]:
    async with listening(fast or answering()) as faster, listening(safe or answering()) as safer:
        facts = {"engine": "vllm", "engine_version": "0.32.0"}
        speculates = {**facts, "method": "draft_model", "settings": {"rejection_sample_method": "standard"}}
        pools = {
            "speculative": {"kind": "remote", "url": faster.url, "facts": speculates},
            "standard": {"kind": "remote", "url": safer.url, "facts": {**facts, "method": "none"}},
        }
        config = {
            "models": {"m": {"family": "qwen3", "grammar": "hermes", "pools": pools}},
            "policy": {"advisories": str(ADVISORIES)},
            "quarantine": quarantine,
        }
        async with serving(config) as ports:
            yield ports


async def ask(url: str, body: Any = None) -> tuple[int, Any]:
    async with (
        aiohttp.ClientSession() as session,
        session.request("GET" if body is None else "POST", f"{url}/admin/v1/quarantine", json=body) as response,
    ):
        return response.status, await response.json()


async def explained(url: str) -> dict[str, Any]:
    async with aiohttp.ClientSession() as session, session.post(f"{url}/v1/route/explain", json=TOOLS) as response:
        reply: dict[str, Any] = await response.json()
        return reply


async def specgate(*arguments: str) -> tuple[int, str]:
    result = await asyncio.to_thread(CliRunner().invoke, app, ["quarantine", *arguments])
    return result.exit_code, result.output


async def test_nothing_is_out_at_the_start() -> None:
    async with gateway() as ports:
        assert await ask(ports.admin_api) == (200, {"object": "list", "data": []})


async def test_what_an_operator_takes_out_is_out_at_once_and_says_why() -> None:
    async with gateway() as ports:
        status, reply = await ask(ports.admin_api, TAKE_OUT)
        after = await explained(ports.data)
    assert status == 200
    (cell,) = reply["data"]
    assert (cell["status"], cell["held"], cell["by"], cell["why"]) == ("quarantined", True, "operator", "incident 17")
    assert cell["speculative"] is True, "what the pool does first"
    assert (after["pool"], [each["advisory"] for each in after["reasons"]]) == ("standard", ["quarantine"])
    assert "incident 17" in after["reasons"][0]["summary"]


async def test_what_is_lifted_is_back() -> None:
    async with gateway() as ports:
        await ask(ports.admin_api, TAKE_OUT)
        await ask(ports.admin_api, {**TAKE_OUT, "action": "lift", "reason": "fixed"})
        assert (await explained(ports.data))["pool"] == "speculative"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"action": "ban"}, "action"),
        ({"reason": ""}, "reason"),
        ({"colour": "red"}, "colour"),
        ({"model": "n"}, "there are m"),
        ({"pool": "fast"}, "it has speculative, standard"),
        ({"request_class": "tools"}, "not a class whose answers are checked"),
        ({"request_class": "plain"}, "not a class whose answers are checked"),
        ({"request_class": "tools_atuo"}, "kinds that can be checked (tools_auto, tools_forced, json_object"),
        ({"speculative": False}, "never answers without speculation"),
    ],
)
async def test_an_order_that_makes_no_sense_is_refused_with_what_would(change: Any, message: str) -> None:
    async with gateway() as ports:
        status, reply = await ask(ports.admin_api, {**TAKE_OUT, **change})
        assert (await ask(ports.admin_api))[1]["data"] == []
    assert status == 400
    assert message in reply["error"]["message"]


async def test_a_body_that_is_no_json_is_refused() -> None:
    async with (
        gateway() as ports,
        aiohttp.ClientSession() as session,
        session.post(f"{ports.admin_api}/admin/v1/quarantine", data=b"{", headers=JSON) as response,
    ):
        assert response.status == 400


async def test_where_quarantine_is_off_there_are_no_routes() -> None:
    async with gateway(enabled=False) as ports:
        assert (await ask(ports.admin_api))[0] == 404
        assert (await explained(ports.data))["pool"] == "speculative"


async def test_a_pool_that_breaks_takes_itself_out_and_the_metrics_say_so() -> None:
    broken = build_sim_app(SimSettings(model="m", num_speculative_tokens=3, faults={"truncated_string": 0.9}))
    sound = build_sim_app(SimSettings(model="m"))
    async with gateway(broken, sound, reference_share=0.5) as ports, aiohttp.ClientSession() as session:
        for seed in range(600):
            async with session.post(f"{ports.data}/v1/chat/completions", json={**CALL, "seed": seed}) as response:
                assert response.status == 200
            if seed % 20 == 19 and "quarantined" in [
                cell["status"] for cell in (await ask(ports.admin_api))[1]["data"]
            ]:
                break
        async with session.post(f"{ports.data}/v1/chat/completions", json=CALL) as response:
            assert response.headers["x-specgate-pool"] == "standard"
            assert "quarantine" in response.headers["x-specgate-reasons"]
        async with session.get(f"{ports.admin_api}/metrics") as response:
            metrics = await response.text()
    gauges = [
        line for line in metrics.splitlines() if line.startswith("specgate_quarantined") and "tools_forced" in line
    ]
    assert {'pool="speculative"' in line: line.endswith(" 1.0") for line in gauges} == {True: True, False: False}
    for name in ("specgate_verdicts_total", "specgate_answers_total", "specgate_clean_rate"):
        assert name in metrics


def coin(seed: int) -> AsgiApp:
    """An engine that answers heads or tails."""
    random = Random(seed)

    async def tosses(engine: Engine, send: Any, _: bytes) -> None:
        side = random.choice(["heads", "tails"])
        message = {"role": "assistant", "content": json.dumps({"side": side})}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        await start(send)
        await end(send, json.dumps({"id": "c", "object": "chat.completion", "choices": [choice]}).encode())

    return Engine(tosses)


HEADS = {"type": "object", "properties": {"side": {"const": "heads"}}, "required": ["side"]}
ASK_FOR_HEADS = {
    "model": "m",
    "messages": [{"role": "user", "content": "x"}],
    "response_format": {"type": "json_schema", "json_schema": {"name": "coin", "strict": True, "schema": HEADS}},
}


async def test_one_client_that_asks_two_equal_pools_for_a_coins_heads_has_none_taken_out() -> None:
    """A failure whose rerun went well was held against the pool that was asked first, and that one only."""
    async with gateway(coin(1), coin(2)) as ports, aiohttp.ClientSession() as session:

        async def one() -> str:
            async with session.post(f"{ports.data}/v1/chat/completions", json=ASK_FOR_HEADS) as response:
                await response.read()
                return response.headers.get("x-specgate-reasons", "")

        for _ in range(60):
            reasons = await asyncio.gather(*(one() for _ in range(8)))
            assert not any("quarantine" in each for each in reasons)

        async def all_are_counted() -> bool:
            rows = (await ask(ports.admin_api))[1]["data"]
            assert {row["status"] for row in rows} <= {"open"}
            return sum(sum(row["trials"].values()) for row in rows) == 480

        await until(all_are_counted, lambda: "some request is no trial", 60)


async def test_the_command_line_lists_orders_and_prints_json() -> None:
    async with gateway() as ports:
        assert "no counts yet" in (await specgate("list", "--url", ports.admin_api))[1]
        order = ["m", "speculative", "tools_auto", "--url", ports.admin_api, "--reason"]
        code, out = await specgate("set", *order, "incident 17")
        assert (code, "out by operator" in out, "incident 17" in out) == (0, True, True)
        code, out = await specgate("pin", *order, "a test", "--json")
        assert (code, json.loads(out)[0]["status"], json.loads(out)[0]["held"]) == (0, "open", True)
        assert "pinned" in (await specgate("list", "--url", ports.admin_api))[1]
        assert (await specgate("lift", *order, "done"))[0] == 0


async def test_the_command_line_tells_what_is_wrong() -> None:
    async with gateway() as ports:
        code, out = await specgate("set", "m", "fast", "tools_auto", "--reason", "x", "--url", ports.admin_api)
        assert (code, "it has speculative, standard" in " ".join(out.split())) == (2, True)
        code, out = await specgate("list", "--url", f"{ports.admin_api}/nowhere")
        assert (code, "is not served here" in " ".join(out.split())) == (2, True)
    code, out = await specgate("list", "--url", "http://127.0.0.1:1")
    assert (code, "set its address with --url" in " ".join(out.split())) == (2, True)
