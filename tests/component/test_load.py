"""Load through the whole gateway: a busy drafter is left, answers teach what it accepts, explain shows the figures."""

import asyncio
import json
from typing import Any

import pytest
from support.engines import Engine, answering, chunk, end, frame, start, streaming, whole
from support.guard_harness import tools_request
from support.guard_stack import NO_ADVISORIES, config, post
from support.stack import Stack, running

from policies.acceptance import Acceptance
from policies.ranking import PoolLoad
from serve.access.principal import ANONYMOUS, Principal
from serve.gateway.endpoints import explanation
from serve.guard.core import Guard

DONE = b"data: [DONE]\n\n"
WANTED = {"stream_options": {"include_usage": True}}
HELLO = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
METRICS = {
    "metrics": {
        "speculative_decoding": {"num_spec_steps": 100, "num_accepted_draft_tokens": 20, "num_draft_tokens": 300}
    }
}
USAGE = {**chunk({}), "choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 120, "total_tokens": 121}}
STREAM = [frame(chunk({"content": "hal"})), frame(chunk({}, "stop")), frame({**USAGE, **METRICS}), DONE]
SPECULATIVE = ("m", "speculative")
STANDARD = ("m", "standard")


def settings(load: str) -> dict[str, Any]:
    made = config(policy={"advisories": NO_ADVISORIES, "load": load})
    pool = made["models"]["m"]["pools"]["speculative"]
    pool["facts"] = {**pool["facts"], "num_speculative_tokens": 3}
    return made


def load_of(stack: Stack, key: tuple[str, str]) -> PoolLoad:
    assert stack.gateway.load is not None
    return stack.gateway.load.loads[key]


def learned(stack: Stack) -> dict[str, Acceptance]:
    assert stack.gateway.load is not None
    return {f"{pool} {request_class}": found for _, pool, request_class, found in stack.gateway.load.learned()}


def burden(stack: Stack) -> None:
    for _ in range(150):
        load_of(stack, SPECULATIVE).begin(2.7)


@pytest.mark.parametrize(("mode", "pool"), [("route", "standard"), ("observe", "speculative"), ("off", "speculative")])
async def test_a_busy_drafter_is_left_if_the_operator_says_so(mode: str, pool: str) -> None:
    engines = {SPECULATIVE: answering(), STANDARD: answering()}
    async with running(settings(mode), engines) as stack:
        if mode != "off":
            burden(stack)
        status, headers, _ = await post(stack.url, HELLO)
    assert (status, headers["x-specgate-pool"]) == (200, pool)
    assert ("load" in headers["x-specgate-reasons"].split(",")) == (mode == "route")


@pytest.mark.parametrize("cut", [True, False], ids=["one write a frame", "all at once"])
async def test_the_report_at_the_end_of_a_stream_is_learned(cut: bool) -> None:
    frames = STREAM if cut else [b"".join(STREAM)]
    async with running(settings("observe"), {SPECULATIVE: streaming(frames), STANDARD: answering()}) as stack:
        status, _, body = await post(stack.url, {**HELLO, "stream": True, **WANTED})
        found = learned(stack)["speculative plain"]
    left = json.loads(body.split(b"\n\n")[2].removeprefix(b"data: "))
    assert (status, left["metrics"]) == (200, {"speculative_decoding": None})
    assert b"num_spec_steps" not in body
    assert found.answers == 1
    assert found.length < found.prior


@pytest.mark.parametrize("wanted", [False, True])
async def test_a_guarded_stream_is_learned_from_whether_or_not_the_client_wants_usage(wanted: bool) -> None:
    engine = streaming(STREAM)
    asked = tools_request(model="m", stream=True, **(WANTED if wanted else {}))
    async with running(settings("observe"), {SPECULATIVE: engine, STANDARD: answering()}) as stack:
        status, _, body = await post(stack.url, asked)
        assert [found.answers for name, found in learned(stack).items() if "tools" in name] == [1]
    ((_, sent),) = engine.requests
    assert json.loads(sent)["stream_options"] == {"include_usage": True}
    assert status == 200
    assert (b'"usage"' in body, b'"metrics"' in body) == (wanted, wanted)
    assert body.endswith(DONE)


@pytest.mark.parametrize("fails", ["__init__", "feed"])
async def test_usage_that_the_load_has_asked_for_stays_with_it_even_if_the_guard_fails(
    fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest of the answer passed as the engine sent it, with a chunk that has no choice."""

    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("injected")

    monkeypatch.setattr(Guard, fails, fail)
    made = settings("observe")
    made["models"]["m"]["guard"] = {"unjudged": "pass"}
    engine = streaming(STREAM)
    async with running(made, {SPECULATIVE: engine, STANDARD: answering()}) as stack:
        status, _, body = await post(stack.url, tools_request(model="m", stream=True))
    ((_, sent),) = engine.requests
    assert json.loads(sent)["stream_options"] == {"include_usage": True}
    assert (status, body) == (200, b"".join([*STREAM[:2], DONE]))


@pytest.mark.parametrize(
    ("load", "guard"), [("off", {}), ("observe", {"mode": "observe"}), ("observe", {"mode": "off"})]
)
async def test_no_usage_is_asked_for_where_it_would_reach_a_client_who_does_not_want_it(
    load: str, guard: dict[str, Any]
) -> None:
    engine = streaming([frame(chunk({"content": "hal"})), frame(chunk({}, "stop")), DONE])
    made = settings(load)
    made["models"]["m"]["guard"] = guard
    async with running(made, {SPECULATIVE: engine, STANDARD: answering()}) as stack:
        await post(stack.url, tools_request(model="m", stream=True))
    ((_, sent),) = engine.requests
    assert "stream_options" not in json.loads(sent)


async def test_the_report_of_a_whole_answer_is_learned() -> None:
    engine = answering({**whole("hello"), **METRICS})
    async with running(settings("observe"), {SPECULATIVE: engine, STANDARD: answering()}) as stack:
        await post(stack.url, HELLO)
        assert learned(stack)["speculative plain"].answers == 1


@pytest.mark.parametrize(
    ("headers", "scopes", "seen"),
    [
        ({"x-specgate-drafts": "true"}, ["infer", "observe"], True),
        ({"x-specgate-drafts": "true"}, ["infer"], False),
        ({"x-specgate-drafts": "yes"}, ["infer", "observe"], False),
        ({}, ["infer", "observe"], False),
    ],
)
async def test_what_an_engine_tells_of_drafts_reaches_who_asks_and_may_observe(
    headers: dict[str, str], scopes: list[str], seen: bool
) -> None:
    caller = Principal("k", ANONYMOUS.tenant, frozenset(scopes))
    engines = {SPECULATIVE: answering({**whole("hello"), **METRICS}), STANDARD: answering()}
    async with running(settings("off"), engines, authenticate=lambda _: caller) as stack:
        raw = await stack.client.chat.completions.with_raw_response.create(**HELLO, extra_headers=headers)
    assert (json.loads(raw.text)["metrics"]["speculative_decoding"] is not None) == seen


async def test_a_request_counts_where_it_is_while_it_is_there() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def wait(engine: Engine, send: Any, _: bytes) -> None:
        begun.set()
        await go_on.wait()
        await start(send)
        await end(send, json.dumps(whole("hello")).encode())

    async with running(settings("observe"), {SPECULATIVE: Engine(wait), STANDARD: answering()}) as stack:
        asking = asyncio.create_task(post(stack.url, HELLO))
        await begun.wait()
        assert load_of(stack, SPECULATIVE).requests == 1
        go_on.set()
        await asking
        assert load_of(stack, SPECULATIVE).requests == 0


async def test_a_request_that_fails_over_counts_where_it_went() -> None:
    engines = {SPECULATIVE: answering({"error": {"message": "busy"}}, 429), STANDARD: answering()}
    async with running(settings("observe"), engines) as stack:
        _, headers, _ = await post(stack.url, HELLO)
        assert headers["x-specgate-pool"] == "standard"
        assert [load_of(stack, key).requests for key in (SPECULATIVE, STANDARD)] == [0, 0]


async def test_explain_shows_the_figures_and_decides_as_a_request_would_be() -> None:
    async with running(settings("route"), {SPECULATIVE: answering(), STANDARD: answering()}) as stack:
        burden(stack)
        explained, evidence = await explanation(stack.gateway, json.dumps(HELLO).encode(), {})
        assert stack.gateway.load is not None
        assert stack.gateway.load.moves == {}
    assert explained["pool"] == "standard"
    assert [row["pool"] for row in explained["load"]] == ["speculative", "standard"]
    assert explained["load"][0]["requests_per_engine"] == 150
    assert any(reason["advisory"] == "load" for reason in explained["reasons"])
    assert evidence == "none"


async def test_without_load_explain_says_nothing_of_it() -> None:
    async with running(settings("off"), {SPECULATIVE: answering(), STANDARD: answering()}) as stack:
        explained, _ = await explanation(stack.gateway, json.dumps(HELLO).encode(), {})
    assert "load" not in explained
