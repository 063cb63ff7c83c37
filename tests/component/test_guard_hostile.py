"""Engines that send odd or endless answers: the client has a valid answer or an explicit error, and others go on."""

import asyncio
import io
import json
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
from support.engines import Engine, answering, chunk, end, frame, start, streaming
from support.guard_harness import TOOLS
from support.guard_stack import chunks_in, config, post
from support.stack import listening, running

from lab.attacks.bombs import BOMBS
from lab.attacks.shapes import DENSE
from policies import Policy, Trial
from serve.config.guard import GuardConfig
from serve.config.quarantine import QuarantineConfig
from serve.guard.core import Outcome
from serve.quarantine.live_policy import LivePolicy, QuarantinedPolicy
from serve.quarantine.shared_detector import QuarantineActor
from serve.routing.pool import Endpoint
from serve.routing.remote_pool import RemotePool
from serve.shared.link import LocalLink

DONE = b"data: [DONE]\n\n"
HELLO = [{"role": "user", "content": "hello"}]
WITH_TOOLS: dict[str, Any] = {"model": "m", "messages": HELLO, "tools": TOOLS, "stream": True}
PLAIN: dict[str, Any] = {"model": "m", "messages": HELLO, "stream": True}


@pytest.mark.parametrize("body", [PLAIN, WITH_TOOLS], ids=["plain", "guarded"])
async def test_an_answer_in_one_long_write_arrives_whole(body: dict[str, Any]) -> None:
    answer = b"".join([frame(chunk({"content": f"word {n} "})) for n in range(3_000)])
    whole = answer + frame(chunk({}, "stop")) + DONE
    engine = streaming([whole])
    async with running(config(), {("m", "speculative"): engine, ("m", "standard"): engine}) as stack:
        status, _, got = await post(stack.url, body)
    assert (status, chunks_in(got)) == (200, chunks_in(whole))


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_clients_own_stop_inside_a_call_is_an_answer_without_the_call(streamed: bool) -> None:
    entry = {"index": 0, "id": "c", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "'}}
    ending = {"finish_reason": "tool_calls", "stop_reason": "Osaka"}
    last = {**chunk({}), "choices": [{"index": 0, "delta": {}, **ending}]}
    message = {"role": "assistant", "content": None, "tool_calls": [entry]}
    whole = {**chunk({}), "choices": [{"index": 0, "message": message, **ending}]}
    engine = streaming([frame(chunk({"tool_calls": [entry]})), frame(last), DONE]) if streamed else answering(whole)
    results: list[Any] = []
    pools = {("m", "speculative"): engine, ("m", "standard"): engine}
    async with running(config(), pools, sink=results.append) as stack:
        status, _, got = await post(stack.url, {**WITH_TOOLS, "stream": streamed, "stop": ["Osaka"]})
    choice = (chunks_in(got)[-2] if streamed else json.loads(got))["choices"][0]
    assert (status, choice["finish_reason"], choice["stop_reason"]) == (200, "stop", "Osaka")
    assert b"get_weather" not in got
    assert [(result.attempt, result.verdict.counts) for result in results] == [(0, False)]


IMPOSSIBLE: dict[str, Any] = {
    "not anything": {"not": {}},
    "not anything of any type": {"type": "object", "not": {"type": "object"}},
    "an empty enumeration": {"type": "object", "properties": {"a": {"enum": []}}, "required": ["a"]},
    "contradictory": {"type": "object", "required": ["a"], "properties": {"a": {"type": "string", "const": 1}}},
    "false": {"type": "object", "required": ["a"], "properties": {"a": False}},
    "more than there may be": {"type": "object", "minProperties": 3, "maxProperties": 1},
}


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("schema", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
async def test_a_request_that_no_pool_satisfies_is_broken_by_both_whichever_is_first(
    schema: Any, streamed: bool, strict: bool
) -> None:
    function = {"name": "f", "parameters": schema, "strict": strict}
    body = {**WITH_TOOLS, "stream": streamed, "tools": [{"type": "function", "function": function}]}
    engines = [answering_call('{"a": "x", "b": 2}', streamed), answering_call("{}", streamed)]
    for chance, order in ((0.9, ["speculative", "standard"]), (0.0, ["standard", "speculative"])):
        results: list[Any] = []
        trials = Trials(chance)
        pools = {("m", "speculative"): engines[0], ("m", "standard"): engines[1]}
        async with running(config(), pools, sink=results.append, live=trials) as stack:
            await post(stack.url, body)
        assert [result.pool for result in results] == order
        assert trials.findings == [(order[0], "both")]


class Trials:
    """Makes a policy in force under which every request is a trial; notes what they found, and who answered first.

    Args:
        chance: That the one who answers first is drawn by: below 0.5, the reference.
    """

    def __init__(self, chance: float) -> None:
        self.findings: list[tuple[str, str]] = []
        self.over = asyncio.Event()
        self._chance = chance

    def __call__(self, policy: Policy) -> LivePolicy:
        findings, over = self.findings, self.over

        class Noting(QuarantinedPolicy):
            def found(self, trial: Trial, finding: str) -> None:
                findings.append((trial.first.pool, finding))
                over.set()

        detector = LocalLink(QuarantineActor())
        settings = QuarantineConfig(reference_share=0.5)
        return Noting(settings, {"m": GuardConfig()}, policy, detector, lambda: self._chance)


@pytest.mark.parametrize("chance", [0.9, 0.0])
async def test_a_trial_finds_whose_failure_it_was_and_whether_anybody_knows(chance: float) -> None:
    broken, sound = answering_call('{"city"', False), answering_call('{"city": "Bern", "days": 2}', False)
    refusing = answering({"error": {"message": "busy"}}, status=503)
    body = {**WITH_TOOLS, "stream": False}
    names = ["speculative", "standard"] if chance > 0.5 else ["standard", "speculative"]
    expected = [(sound, sound, "good"), (sound, broken, "good"), (broken, sound, "bad"), (broken, broken, "both"),
                (broken, refusing, "unseen"), (refusing, sound, "absent"), (refusing, refusing, "absent"),
                (answering({"error": {"message": "too long"}}, status=400), sound, "good")]  # fmt: skip
    for first, other, finding in expected:
        trials = Trials(chance)
        pools = {("m", name): engine for name, engine in zip(names, (first, other), strict=True)}
        async with running(config(), pools, live=trials) as stack:
            await post(stack.url, body)
        assert trials.findings == [(names[0], finding)]


@pytest.mark.parametrize("chance", [0.9, 0.0])
async def test_a_trial_at_a_pool_that_is_gone_is_one_that_it_did_not_answer(chance: float) -> None:
    """Or the trials of the time without it would be the other pool's alone, whatever was asked at that time."""
    names = ["speculative", "standard"] if chance > 0.5 else ["standard", "speculative"]
    async with listening(answering()) as gone:
        url = gone.url
    trials = Trials(chance)
    limits = {"limits": {"max_attempts": 1}}
    apps = {("m", names[1]): answering_call("{}", False)}
    pools = {("m", names[0]): RemotePool(Endpoint(url, None), {})}
    async with running(config(**limits), apps, pools, live=trials) as stack:
        status, _, _ = await post(stack.url, {**WITH_TOOLS, "stream": False})
    assert (status, trials.findings) == (503, [(names[0], "absent")])


async def test_a_trial_whose_client_leaves_says_so() -> None:
    entered = asyncio.Event()

    async def stays(engine: Engine, send: Any, _: bytes) -> None:
        await start(send, kind="text/event-stream")
        await send({"type": "http.response.body", "body": frame(chunk({"content": "hello"})), "more_body": True})
        entered.set()
        await asyncio.Event().wait()

    trials = Trials(0.0)
    engine = Engine(stays)
    async with running(config(), {("m", "speculative"): engine, ("m", "standard"): engine}, live=trials) as stack:
        url = f"{stack.url}/v1/chat/completions"
        async with aiohttp.ClientSession() as session, session.post(url, json=WITH_TOOLS) as response:
            await response.content.readany()
            await entered.wait()
        await trials.over.wait()
    assert trials.findings == [("standard", "left")]


def answering_call(arguments: str, streamed: bool) -> Any:
    name = "f" if "city" not in arguments else "get_weather"
    entry = {"index": 0, "id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}
    if streamed:
        return streaming([frame(chunk({"tool_calls": [entry]})), frame(chunk({}, "tool_calls")), DONE])
    message = {"role": "assistant", "content": None, "tool_calls": [entry]}
    return answering({**chunk({}), "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]})


HOSTILE = {"bomb": json.loads(BOMBS["doubling"][0]), "pattern": {"pattern": "("}, "reference": {"$ref": "http://x/y"}}


@pytest.mark.parametrize("unjudged", ["pass", "refuse"])
@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE)
async def test_what_a_hostile_schema_leaves_unjudged_is_delivered_or_refused_as_configured(
    hostile: Any, streamed: bool, unjudged: str
) -> None:
    function = {"name": "f", "parameters": {"properties": {"a": hostile}}}
    sound = {"name": "get_weather", "parameters": {"type": "object", "required": ["city"]}}
    tools = [{"type": "function", "function": each} for each in (function, sound)]
    body = {**WITH_TOOLS, "stream": streamed, "tools": tools}
    results: list[Any] = []
    calling = [answering_call(arguments, streamed) for arguments in ('{"a": "x"}', '{"city": "Bern"}')]
    for number, engine in enumerate(calling):
        pools = {("m", "speculative"): engine, ("m", "standard"): engine}
        async with running(config(guard={"unjudged": unjudged}), pools, sink=results.append) as stack:
            status, _, got = await post(stack.url, body)
        delivered = unjudged == "pass" or number == 1  # the other tool's calls are judged
        assert (b"function" in got, b"integrity_violation" in got) == (delivered, not delivered)
        assert status == (200 if delivered or streamed else 502)
        assert (b"[DONE]" in got) is (streamed and delivered)
    assert [result.verdict.outcome for result in results] == [Outcome.UNJUDGED, Outcome.CLEAN]
    assert [result.verdict.counts for result in results] == [False, True]


async def test_a_stream_that_breaks_after_its_end_is_a_whole_answer() -> None:
    frames = [frame(chunk({"content": "hello"})), frame(chunk({}, "stop")), DONE]

    async def breaks(engine: Engine, send: Any, _: bytes) -> None:
        await start(send, kind="text/event-stream")
        for part in frames:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        raise ConnectionError("the engine dies before the last chunk")

    dying = Engine(breaks)
    async with running(config(), {("m", "speculative"): dying, ("m", "standard"): dying}) as stack:
        status, _, got = await post(stack.url, PLAIN)
    assert (status, got) == (200, b"".join(frames))


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
async def test_numbers_of_thousands_of_digits_are_the_clients_fault(path: str) -> None:
    numbers = ",".join(["7" * 4_000] * 300)
    body = f'{{"model": "m", "max_tokens": 5, "messages": [], "input": "x", "metadata": {{"a": [{numbers}]}}}}'
    engine = answering()
    pools = {("m", "speculative"): engine, ("m", "standard"): engine}
    async with running(config(), pools) as stack, aiohttp.ClientSession() as session:
        kind = {"content-type": "application/json"}
        async with session.post(f"{stack.url}{path}", data=io.BytesIO(body.encode()), headers=kind) as response:
            said = await response.text()
    assert (response.status, "digits" in said, engine.requests) == (400, True, [])


@pytest.mark.parametrize("answer", DENSE.values(), ids=DENSE)
async def test_a_whole_answer_that_would_hold_everybody_up_is_the_engines_fault(answer: Callable[[], str]) -> None:
    async def says(engine: Engine, send: Any, _: bytes) -> None:
        await start(send)
        await end(send, answer().encode())

    engine = Engine(says)
    async with running(config(), {("m", "speculative"): engine, ("m", "standard"): engine}) as stack:
        status, _, got = await post(stack.url, {**WITH_TOOLS, "stream": False})
    assert (status, json.loads(got)["error"]["code"]) == (502, "engine_error")
