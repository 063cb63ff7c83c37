"""One request as a tree of spans, from the client's trace to what the engine gets, and as a line of the log."""

import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from support.engines import Engine, answering, frame, streaming, whole
from support.guard_harness import tools_request
from support.guard_stack import config
from support.stack import running
from support.tokens import QWEN_MARKERS, asking, qwen_call, resuming

from lab.scripted.arrival import Arrival
from lab.scripted.tokens import TokenFault, TokenModel
from serve.access.principal import ANONYMOUS, Principal
from serve.config.gateway import TelemetryConfig
from serve.errors import InvalidApiKeyError
from serve.telemetry.instruments import Telemetry

TRACE = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE}-b7ad6b7169203331-01"
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 9, "temperature": 0.5}
CANARY = "canary-in-the-coal-mine"
BROKEN = {
    **whole(""),
    "choices": [
        {
            "index": 0,
            "finish_reason": "tool_calls",
            "message": {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": CANARY, "arguments": f'{{"{CANARY}'}}
                ],
            },
        }
    ],
}


class Seen:
    """The spans of the requests so far."""

    def __init__(self, telemetry: Telemetry, exporter: InMemorySpanExporter) -> None:
        self._telemetry = telemetry
        self._exporter = exporter

    @property
    def spans(self) -> list[ReadableSpan]:
        self._telemetry.shutdown()
        return sorted(self._exporter.get_finished_spans(), key=lambda span: span.start_time or 0)

    def tree(self) -> list[str]:
        """Names of the spans in the order of their beginnings, indented by their depth."""
        spans = self.spans
        parents = {span.context.span_id: span.parent.span_id if span.parent else 0 for span in spans}

        def depth(span_id: int) -> int:
            return 1 + depth(parents[span_id]) if span_id in parents else -1

        return ["  " * depth(span.context.span_id) + span.name for span in spans]


@asynccontextmanager
async def traced(
    speculative: Engine, standard: Engine, settings: Mapping[str, Any] | None = None, **more: Any
) -> AsyncIterator[tuple[str, Seen]]:
    exporter = InMemorySpanExporter()
    settings = settings or config()
    telemetry = Telemetry({}, exporter, TelemetryConfig.model_validate(settings.get("telemetry", {})))
    apps = {("m", "speculative"): speculative, ("m", "standard"): standard}
    async with running(settings, apps, telemetry=telemetry, **more) as stack:
        yield stack.url, Seen(telemetry, exporter)


async def post(url: str, body: Any, **headers: str) -> int:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/v1/chat/completions", json=body, headers=headers) as response,
    ):
        await response.read()
        return response.status


async def test_a_plain_request_is_the_clients_trace_with_one_attempt_that_the_engine_continues() -> None:
    engine = answering()
    async with traced(engine, engine) as (url, seen):
        assert await post(url, CHAT, traceparent=TRACEPARENT, **{"x-request-id": "r1"}) == 200
    assert seen.tree() == ["POST /v1/chat/completions", "  features", "  decide", "  slot", "  chat m"]
    root, _, _, slot, attempt = seen.spans
    assert {f"{span.context.trace_id:032x}" for span in seen.spans} == {TRACE}
    assert (slot.attributes or {})["specgate.pool"] == "speculative"
    assert attempt.kind is SpanKind.CLIENT
    assert engine.requests[0][0]["traceparent"] == f"00-{TRACE}-{attempt.context.span_id:016x}-01"
    reply = dict(attempt.attributes or {})
    assert reply.pop("server.port") > 0  # type: ignore[operator]
    assert reply == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "specgate.sim",
        "gen_ai.request.model": "m",
        "gen_ai.request.max_tokens": 9,
        "gen_ai.request.temperature": 0.5,
        "server.address": "127.0.0.1",
        "http.response.status_code": 200,
        "specgate.pool": "speculative",
        "specgate.speculative": True,
        "specgate.attempt": 1,
    }
    assert root.attributes is not None
    assert (root.attributes["specgate.request_id"], root.attributes["http.response.status_code"]) == ("r1", 200)


async def test_a_rerun_shows_the_verdict_on_the_first_attempt_and_the_second_attempt_below_it() -> None:
    sound = answering()
    async with traced(answering(BROKEN), sound) as (url, seen):
        assert await post(url, tools_request(model="m")) == 200
    assert seen.tree()[3:] == ["  slot", "  chat m", "  rerun", "    slot", "    chat m"]
    root, *_, broken, rerun, _, healed = seen.spans
    assert broken.status.status_code is StatusCode.ERROR
    assert [event.name for event in broken.events] == ["gen_ai.evaluation.result"]
    assert (healed.events[0].attributes or {})["gen_ai.evaluation.score.label"] == "pass"
    assert [(span.attributes or {})["specgate.attempt"] for span in (broken, healed)] == [1, 2]
    assert root.attributes is not None
    assert (root.attributes["specgate.rerun"], root.attributes["specgate.guard.outcome"]) == ("standard", "rerun")
    assert (root.status.status_code, rerun.status.status_code) == (StatusCode.UNSET, StatusCode.UNSET)
    assert sound.requests[0][0]["traceparent"].split("-")[2] == f"{healed.context.span_id:016x}"


class Told(TokenModel):
    """An engine that keeps whose children its spans would be, by the path that it was asked for."""

    parents: dict[str, str]

    async def __call__(self, arrival: Arrival) -> None:
        self.parents[arrival.path] = dict(arrival.headers)["traceparent"].split("-")[2]
        await super().__call__(arrival)


@pytest.mark.parametrize("plain", [False, True])
async def test_all_that_engines_are_asked_for_a_resume_is_below_its_rerun(plain: bool) -> None:
    exporter = InMemorySpanExporter()
    telemetry = Telemetry({}, exporter, TelemetryConfig())
    text = "A long answer about Oslo." if plain else qwen_call("get_weather", city="Oslo", days=2)
    lost, sound = (
        Told({"plan": text}, "qwen3_coder", QWEN_MARKERS, [fault]) for fault in (TokenFault("die", 15), None)
    )
    lost.parents, sound.parents = {}, {}
    body = asking("plan", stream=True, **({"tools": None} if plain else {}))
    async with resuming(lost, sound, telemetry=telemetry) as (stack, _):
        assert await post(stack.url, body, traceparent=TRACEPARENT) == 200
    seen = Seen(telemetry, exporter)
    assert seen.tree()[3:] == ["  slot", "  chat m", "  rerun", "    slot", "    text_completion m"]
    *_, rerun, _, resumed = seen.spans
    assert sound.parents.pop("/v1/completions") == f"{resumed.context.span_id:016x}"
    assert set(sound.parents.values()) == {f"{rerun.context.span_id:016x}"}


async def test_a_resumed_answer_is_told_by_its_spans_and_to_whoever_looks_its_request_up() -> None:
    exporter = InMemorySpanExporter()
    telemetry = Telemetry({}, exporter, TelemetryConfig())
    answers = {"plan a trip": qwen_call("get_weather", city="Oslo", days=2)}
    lost, sound = (TokenModel(answers, "qwen3_coder", QWEN_MARKERS, [fault]) for fault in (TokenFault("die", 40), None))
    async with resuming(lost, sound, telemetry=telemetry) as (stack, _):
        assert await post(stack.url, asking("plan a trip", stream=True), **{"x-request-id": "r1"}) == 200
        ended = stack.gateway.journal.find("r1")
    root, *_, resumed = Seen(telemetry, exporter).spans
    assert (root.attributes or {})["specgate.resumed"] == (resumed.attributes or {})["specgate.resumed"] == 40
    assert ended is not None
    assert (ended.rerun, ended.faults) == ("standard; resumed=40; from=speculative", ("speculative: failed",))


async def test_a_guard_that_only_observes_puts_its_verdict_on_the_attempt_too() -> None:
    async with traced(answering(BROKEN), answering(), config(guard={"mode": "observe"})) as (url, seen):
        assert await post(url, tools_request(model="m")) == 200
    attempt = seen.spans[-1]
    assert [event.name for event in attempt.events] == ["gen_ai.evaluation.result"]
    assert (attempt.attributes or {})["specgate.outcome"] == "unknown_tool"


async def test_each_repeated_attempt_has_a_span_of_its_own() -> None:
    async with traced(answering({"error": {}}, 500), answering()) as (url, seen):
        assert await post(url, CHAT) == 200
    assert seen.tree()[3:] == ["  slot", "  chat m"] * 2
    pools = [(span.attributes or {}).get("specgate.pool") for span in seen.spans if span.kind is SpanKind.CLIENT]
    assert pools == ["speculative", "standard"]


def _by_key(headers: Mapping[str, str]) -> Principal:
    if headers.get("authorization") != "Bearer right":
        raise InvalidApiKeyError("This API key is not valid here.")
    return ANONYMOUS


@pytest.mark.parametrize(("key", "status", "continued"), [("right", 200, True), ("wrong", 401, False)])
async def test_only_a_client_that_may_use_the_gateway_has_its_trace_continued(
    key: str, status: int, continued: bool
) -> None:
    async with traced(answering(), answering(), authenticate=_by_key) as (url, seen):
        assert await post(url, CHAT, traceparent=TRACEPARENT, authorization=f"Bearer {key}") == status
    root = seen.spans[0]
    assert (f"{root.context.trace_id:032x}" == TRACE) is continued
    assert [f"{link.context.trace_id:032x}" for link in root.links] == ([] if continued else [TRACE])


@pytest.mark.parametrize("exports", [True, False])
async def test_client_traces_link_keeps_the_clients_trace_from_engines(exports: bool) -> None:
    engine = answering()
    settings = config(telemetry={"client_traces": "link"})
    headers = {"traceparent": TRACEPARENT, "tracestate": "vendor=1"}
    if exports:
        async with traced(engine, engine, settings) as (url, seen):
            assert await post(url, CHAT, **headers) == 200
        assert TRACE not in {f"{span.context.trace_id:032x}" for span in seen.spans}
        assert TRACE not in engine.requests[0][0]["traceparent"]
    else:
        async with running(settings, {("m", "speculative"): engine, ("m", "standard"): engine}) as stack:
            assert await post(stack.url, CHAT, **headers) == 200
        assert "traceparent" not in engine.requests[0][0]
    assert "tracestate" not in engine.requests[0][0]


ASKED_WITH_CANARY = {
    "model": {"model": CANARY, "messages": [{"role": "user", "content": CANARY}]},
    "malformed": {"model": "m", "messages": CANARY},
    "limit": {**CHAT, "messages": [{"role": "user", "content": CANARY}], "n": 99},
    "format": {**CHAT, "messages": [{"role": "user", "content": CANARY}], "response_format": {"type": CANARY}},
    "tool": {**tools_request(model="m"), "tool_choice": {"type": "function", "function": {"name": CANARY}}},
    "broken": tools_request(model="m", messages=[{"role": "user", "content": CANARY}]),
    "stream": {**tools_request(model="m"), "stream": True},
    "history": tools_request(
        model="m",
        messages=[
            {"role": "user", "content": CANARY},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": CANARY, "type": "function", "function": {"name": CANARY, "arguments": "{"}}],
            },
            {"role": "tool", "tool_call_id": CANARY, "content": CANARY},
        ],
    ),
}


@pytest.mark.parametrize("log_requests", [None, 1.0])
@pytest.mark.parametrize("case", ASKED_WITH_CANARY)
async def test_no_span_and_no_line_of_the_log_holds_a_word_of_a_request_an_answer_or_a_key(
    case: str, log_requests: float | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "ray.serve")
    refusing = answering({"error": {"message": CANARY, "code": CANARY}}, 400)
    settings = config(telemetry={"log_requests": log_requests})
    async with traced(answering(BROKEN), refusing, settings) as (url, seen):
        await post(url, ASKED_WITH_CANARY[case], authorization=f"Bearer {CANARY}", **{"x-session-id": CANARY})
    spans = seen.spans
    assert spans
    assert [span.name for span in spans if CANARY in span.to_json()] == []
    assert [vars(record) for record in caplog.records if CANARY in repr(vars(record))] == []


class TestLog:
    """The lines about requests that `telemetry.log_requests` asks for."""

    @pytest.fixture
    def lines(self, caplog: pytest.LogCaptureFixture) -> Callable[[], list[dict[str, Any]]]:
        caplog.set_level(logging.INFO, "ray.serve")
        return lambda: [vars(record) for record in caplog.records if "request_id" in vars(record)]

    async def test_a_rerun_is_told_in_one_line_with_the_ids_of_request_and_trace(self, lines: Any) -> None:
        settings = config(telemetry={"log_requests": 0.0})
        async with traced(answering(BROKEN), answering(), settings) as (url, _):
            await post(url, tools_request(model="m"), traceparent=TRACEPARENT, **{"x-request-id": "r1"})
            await post(url, CHAT)
        (line,) = lines()
        wanted = {
            "request_id": "r1", "trace_id": TRACE, "path": "/v1/chat/completions", "status": 200, "model": "m",
            "pool": "speculative", "rerun": "standard", "faults": ["speculative: unknown_tool"], "stream": False,
            "tenant": "default", "error": "", "levelname": "WARNING",
        }  # fmt: skip
        assert {name: line[name] for name in wanted} == wanted

    async def test_an_error_of_ours_is_told_at_any_share_and_a_clients_only_by_chance(self, lines: Any) -> None:
        settings = config(telemetry={"log_requests": 0.0}, limits={"max_attempts": 1})
        dead = streaming([])
        async with traced(dead, dead, settings) as (url, _):
            await post(url, {"model": "unknown", "messages": []})
            assert await post(url, {**CHAT, "stream": True}) == 200, "it had begun"
        (line,) = lines()
        assert (line["status"], line["error"]) == (502, "engine_error")

    async def test_an_engine_that_fails_in_mid_stream_is_told_too(self, lines: Any) -> None:
        failing = streaming([frame({"error": {"message": CANARY, "code": 500}}), b"data: [DONE]\n\n"])
        async with traced(failing, failing, config(telemetry={"log_requests": 0.0})) as (url, _):
            await post(url, {**CHAT, "stream": True})
        (line,) = lines()
        assert (line["status"], line["faults"]) == (200, ["speculative: engine_error", *["standard: engine_error"] * 2])

    async def test_a_request_that_was_sent_twice_is_told(self, lines: Any) -> None:
        settings = config(telemetry={"log_requests": 0.0})
        async with traced(answering({}, 429), answering({}, 429), settings) as (url, _):
            assert await post(url, CHAT) == 429
        assert [line["faults"] for line in lines()] == [["speculative: 429"]]

    async def test_every_request_has_one_line_if_the_share_is_1(self, lines: Any) -> None:
        async with traced(answering(), answering(), config(telemetry={"log_requests": 1.0})) as (url, _):
            for number in range(3):
                await post(url, {**CHAT, "model": "m" if number else "unknown"})
        assert [line["status"] for line in lines()] == [404, 200, 200]

    async def test_without_it_broken_answers_are_warned_of_at_a_limited_rate(self, lines: Any) -> None:
        settings = config(telemetry={"warnings_per_minute": 2})
        async with traced(answering(BROKEN), answering(), settings) as (url, _):
            for _ in range(5):
                await post(url, tools_request(model="m"))
        assert [(line["pool"], line["kind"]) for line in lines()] == [("speculative", "unknown_tool")] * 2
