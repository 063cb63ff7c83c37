"""A candidate pool gets copies of requests; its answers are judged, and nobody else ever sees them."""

import asyncio
import gc
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import aiohttp
import pytest
from support.admin_api import Ports, serving
from support.guard_harness import tools_request
from support.guard_stack import KNOWN, NO_ADVISORIES, SPECULATES
from support.stack import listening
from typer.testing import CliRunner

from lab.sim import SimSettings, build_sim_app
from serve.cli import app
from serve.config.gateway import GatewayConfig
from serve.errors import ConfigError
from serve.shadow import copies

NOWHERE = "http://127.0.0.1:9"


@asynccontextmanager
async def engine(**settings: Any) -> AsyncIterator[str]:
    async with listening(build_sim_app(SimSettings(model="m", grammar="qwen3_coder", **settings))) as endpoint:
        yield endpoint.url


def config_of(served: str, candidate: str, **shadow: Any) -> dict[str, Any]:
    pools = {
        name: {"kind": "remote", "url": url, "facts": KNOWN}
        for name, url in {"standard": served, "candidate": candidate}.items()
    }
    model = {"family": "sim", "grammar": "qwen3_coder", "pools": pools}
    shadow = {"pool": "candidate", "share": 1.0, "tolerance": 0.3, "alpha": 0.1, **shadow}
    return {"models": {"m": {**model, "shadow": shadow}}, "policy": {"load": "route"}}


async def post(ports: Ports, path: str = "/v1/chat/completions", **body: Any) -> aiohttp.ClientResponse:
    async with aiohttp.ClientSession() as session:
        response = await session.post(ports.data + path, json=tools_request(model="m", **body))
        await response.read()
        assert response.status == 200, await response.text()
        return response


async def rows_of(ports: Ports, pairs: int = 0, name: str = "pairs") -> list[dict[str, Any]]:
    """Returns the listing once there are so many pairs of this name."""
    async with aiohttp.ClientSession() as session, asyncio.timeout(20):
        while True:
            async with session.get(f"{ports.admin_api}/admin/v1/shadow") as response:
                rows: list[dict[str, Any]] = (await response.json())["data"]
            if not pairs or (rows and rows[0][name] >= pairs):
                return rows
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_sound_candidate_is_promoted_and_its_answers_reach_nobody(stream: bool) -> None:
    async with engine() as served, engine() as candidate, serving(config_of(served, candidate)) as ports:
        for _ in range(20):
            await post(ports, stream=stream)
        every, *_ = await rows_of(ports, 20)
        assert (every["verdict"], every["none_bad"], every["outcomes"]) == ("promote", 20, {"clean": 20})
        result = await asyncio.to_thread(CliRunner().invoke, app, ["shadow", "--url", ports.admin_api])
        assert (result.exit_code, "promote" in result.output) == (0, True)


async def test_a_candidate_that_breaks_calls_is_rejected() -> None:
    async with (
        engine() as served,
        engine(faults={"truncated_string": 1.0}) as candidate,
        serving(config_of(served, candidate)) as ports,
    ):
        for _ in range(12):
            answer = await post(ports)
            assert answer.headers["x-specgate-pool"] == "standard"
            assert "x-specgate-rerun" not in answer.headers
        every, *_ = await rows_of(ports, 12)
        assert (every["verdict"], every["candidate_bad"], every["served_bad"]) == ("reject", 12, 0)
        result = await asyncio.to_thread(CliRunner().invoke, app, ["shadow", "--json", "--url", ports.admin_api])
        assert (result.exit_code, json.loads(result.output)[0]["verdict"]) == (1, "reject")


async def test_a_candidate_that_is_down_costs_nobody_an_answer() -> None:
    async with engine() as served, serving(config_of(served, NOWHERE)) as ports:
        for _ in range(3):
            await post(ports)
        every, *_ = await rows_of(ports, 3)
        assert every["outcomes"] == {"failed": 3}


CUT = {
    "id": "x", "object": "chat.completion", "created": 1, "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "!!!"}, "finish_reason": "length"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3},
}  # fmt: skip


@asynccontextmanager
async def answering(status: int, body: Any, of_ten: int) -> AsyncIterator[str]:
    """An engine that answers so many requests of ten like this, and the others well."""
    sound = build_sim_app(SimSettings(model="m", grammar="qwen3_coder"))
    numbers = count()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or not scope["path"].endswith("/completions") or next(numbers) % 10 >= of_ten:
            await sound(scope, receive, send)
            return
        while (await receive()).get("more_body"):
            pass
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(body).encode()})

    async with listening(app) as endpoint:
        yield endpoint.url


@pytest.mark.parametrize(
    ("status", "body", "outcome"),
    [(400, {"error": {"message": "too long"}}, "refused"), (404, {}, "refused"), (200, CUT, "length")],
)
async def test_an_answer_that_only_the_candidate_refuses_or_never_ends_speaks_against_it(
    status: int, body: Any, outcome: str
) -> None:
    async with (
        engine() as served,
        answering(status, body, of_ten=9) as candidate,
        serving(config_of(served, candidate, max_ongoing=64)) as ports,
    ):
        for _ in range(20):
            await post(ports)
        every, *_ = await rows_of(ports, 20)
        assert (every["verdict"], every["candidate_bad"]) == ("reject", 18)
        assert every["outcomes"] == {outcome: 18, "clean": 2}


async def test_answers_that_length_cuts_as_often_on_both_sides_say_nothing_of_the_candidate() -> None:
    async with (
        answering(200, CUT, of_ten=10) as served,
        answering(200, CUT, of_ten=10) as candidate,
        serving(config_of(served, candidate, max_ongoing=64)) as ports,
    ):
        for _ in range(20):
            await post(ports)
        every, *_ = await rows_of(ports, 20, "both_bad")
        assert (every["verdict"], every["pairs"]) == ("not yet", 0)
        result = await asyncio.to_thread(CliRunner().invoke, app, ["shadow", "--url", ports.admin_api])
        assert (result.exit_code, "both answers" in " ".join(result.output.split())) == (0, True), result.output


async def test_a_candidate_that_is_mostly_busy_is_not_promoted_by_the_rest() -> None:
    async with (
        engine() as served,
        answering(429, {}, of_ten=5) as candidate,
        serving(config_of(served, candidate, max_ongoing=64)) as ports,
    ):
        for _ in range(40):
            await post(ports)
        every, *_ = await rows_of(ports, 15)
        assert every["busy"] > 5
        assert (every["verdict"], every["candidate_bad"]) == ("not yet", 0)
        assert "too busy" in every["why"]


class PanicError(BaseException):
    """Like pyo3's PanicException, which is no Exception."""


@pytest.mark.parametrize("kind", [KeyError, PanicError])
async def test_a_comparison_that_our_own_code_fails_at_is_counted_and_is_no_pair_and_the_log_quotes_nothing(
    kind: type[BaseException], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(_: Any, request: Any, **__: Any) -> Any:
        raise kind(str(request["tools"]))

    async with engine() as served, engine() as candidate, serving(config_of(served, candidate)) as ports:
        monkeypatch.setattr(copies, "ObservedResponse", failing)
        await post(ports, tools=[{"type": "function", "function": {"name": "secret"}}])
        async with aiohttp.ClientSession() as session, asyncio.timeout(20):
            shown = ""
            while not re.search(r"^specgate_shadow_faults_total\{.*} 1\.0$", shown, re.MULTILINE):
                await asyncio.sleep(0.02)
                async with session.get(f"{ports.admin_api}/metrics") as response:
                    shown = await response.text()
        waiting, *_ = await rows_of(ports)
        assert (waiting["verdict"], waiting["pairs"], waiting["request_class"]) == ("not yet", 0, None)
        assert "own code failed" in waiting["why"]
        gc.collect()  # a task whose exception nobody has seen would tell it now
    assert "secret" not in caplog.text
    assert f"a comparison failed: {kind.__name__}\n" in caplog.text


async def test_decisions_know_no_candidate() -> None:
    async with engine() as served, engine() as candidate, serving(config_of(served, candidate)) as ports:
        explained = await (await post(ports, "/v1/route/explain")).json()
        assert [each["pool"] for each in explained["candidates"]] == ["standard"]


async def test_what_chance_does_not_draw_is_not_copied() -> None:
    async with engine() as served, engine() as candidate, serving(config_of(served, candidate, share=1e-9)) as ports:
        await post(ports)
        (waiting,) = await rows_of(ports)
        assert (waiting["verdict"], waiting["pairs"], waiting["request_class"]) == ("not yet", 0, None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shadow": {"pool": "none"}}, "there is no pool 'none'"),
        ({"pools": {"candidate": {"kind": "remote", "url": NOWHERE}}}, "a candidate serves nobody"),
        ({"guard": {"mode": "off"}}, "without the guard"),
        ({"shadow": {"pool": "candidate", "share": 0}}, "share"),
        ({"shadow": {"pool": "candidate", "alpha": 0.9}}, "alpha: Input should be less than or equal to 0.2"),
        ({"shadow": {"pool": "candidate", "tolerance": 0.9}}, "tolerance: Input should be less than or equal to 0.5"),
    ],
)
def test_a_candidate_that_can_not_be_compared_is_a_mistake(change: dict[str, Any], message: str) -> None:
    config = config_of(NOWHERE, NOWHERE)
    config["models"]["m"] |= change
    with pytest.raises(ConfigError, match=message):
        GatewayConfig.parse(config)


async def test_a_gateway_without_a_candidate_tells_what_its_drafters_accept_and_gets_advice() -> None:
    async with engine(num_speculative_tokens=3) as drafting, engine() as plain:
        config = config_of(plain, drafting)
        model = config["models"]["m"]
        del model["shadow"]
        model["pools"]["candidate"]["facts"] = {**SPECULATES, "num_speculative_tokens": 3}
        config["policy"]["advisories"] = NO_ADVISORIES
        async with serving(config) as ports:
            for _ in range(3):
                await post(ports)
            url = f"{ports.admin_api}/admin/v1/drafts"
            async with aiohttp.ClientSession() as session, session.get(url) as response:
                rows = (await response.json())["data"]
            result = await asyncio.to_thread(CliRunner().invoke, app, ["plan", "--live", "--url", ports.admin_api])
    assert {(row["pool"], row["drafts"]) for row in rows} == {("candidate", 3)}
    assert 1 <= sum(row["answers"] for row in rows) <= 3
    assert (result.exit_code, "evidence" in result.output) == (0, True)
