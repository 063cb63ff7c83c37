"""Anthropic's SDK against a gateway with simulated and hand-written engines."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import anthropic
import fastapi
import pytest
from support.anthropic_tools import TOOLS
from support.engines import Engine, answering, chunk, end, frame, silent, start, streaming, whole
from support.guard_stack import config, healing
from support.stack import Stack, listening, running

from lab.sim import SimSettings
from serve.dialects.api import dropped_header
from serve.errors import InvalidRequestError
from serve.gateway.endpoints import explanation
from serve.gateway.pipeline import hot_routes
from serve.guard.attempt_result import AttemptResult
from serve.routing.pool import Endpoint
from serve.routing.remote_pool import RemotePool

DONE = b"data: [DONE]\n\n"
SOUND = SimSettings(model="m")
CUT = SimSettings(model="m", faults={"truncated_string": 1.0})
HELLO: Any = [{"role": "user", "content": "hello"}]
CALL: Any = {"model": "m", "max_tokens": 1000, "messages": HELLO, "tools": TOOLS, "tool_choice": {"type": "any"}}


@asynccontextmanager
async def connected(
    faulty: SimSettings, **options: Any
) -> AsyncIterator[tuple[anthropic.AsyncAnthropic, Stack, list[AttemptResult]]]:
    async with healing(faulty, **options) as (stack, judged):
        client = anthropic.AsyncAnthropic(base_url=stack.url, api_key="none", max_retries=0)
        async with client:
            yield client, stack, judged


class TestAnswers:
    @pytest.mark.parametrize("faulty", [SOUND, CUT])
    async def test_a_broken_call_is_healed_before_the_client_sees_it_streamed_or_whole(
        self, faulty: SimSettings
    ) -> None:
        async with connected(faulty) as (client, _, _):
            whole = await client.messages.create(**CALL)
            async with client.messages.stream(**CALL) as stream:
                streamed = await stream.get_final_message()
        for message in (whole, streamed):
            calls = [block for block in message.content if block.type == "tool_use"]
            assert message.stop_reason == "tool_use"
            assert calls
            assert all(set(call.input) == {"city", "days"} for call in calls)
            assert message.usage.input_tokens > 0
            assert message.usage.output_tokens > 0

    async def test_an_unknown_model_is_an_error_in_anthropics_shape_that_is_not_retried(self) -> None:
        async with connected(SOUND) as (client, _, _):
            with pytest.raises(anthropic.BadRequestError, match="Known models: m") as failed:
                await client.messages.create(model="nope", max_tokens=9, messages=HELLO)
        assert failed.value.body["error"]["type"] == "invalid_request_error"  # type: ignore[index]
        assert failed.value.request_id


class TestOptOut:
    @pytest.mark.parametrize("api", ["chat", "messages"])
    async def test_the_suffix_of_the_models_name_forbids_speculation_and_is_not_echoed(self, api: str) -> None:
        async with connected(SOUND) as (client, stack, _):
            if api == "chat":
                raw: Any = await stack.client.chat.completions.with_raw_response.create(
                    model="m:nospec", messages=HELLO, extra_body={"enable_speculative": True}
                )
            else:
                raw = await client.messages.with_raw_response.create(model="m:nospec", max_tokens=99, messages=HELLO)
            answer = json.loads(raw.text if api == "chat" else await raw.text())
        assert raw.headers["x-specgate-speculative"] == "off"
        assert raw.headers["x-specgate-reasons"] == "caller-opt-out"
        assert answer["model"] == "m"


class TestToolLoop:
    async def test_a_loop_goes_on_with_what_the_client_sends_back(self) -> None:
        call = {
            "index": 0, "id": "functions.get_weather:0", "type": "function",
            "function": {"name": "get_weather", "arguments": '{"city": "Oslo", "days": 2}'},
        }  # fmt: skip
        engine = streaming(
            [frame(chunk({"reasoning": "Look it up."})), frame(chunk({"tool_calls": [call]}, "tool_calls")), DONE]
        )
        request = {**CALL, "tool_choice": {"type": "auto"}, "thinking": {"type": "adaptive"}}
        async with gateway(engine) as (client, _):
            async with client.messages.stream(**request) as stream:
                first = await stream.get_final_message()
            [use] = [block for block in first.content if block.type == "tool_use"]
            result = {"type": "tool_result", "tool_use_id": use.id, "content": "sunny"}
            echo = [*HELLO, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
            async with client.messages.stream(**{**request, "messages": echo}) as stream:
                await stream.get_final_message()
        sent = json.loads(engine.requests[1][1])["messages"]
        assert sent[1]["reasoning"] == "Look it up."
        assert sent[1]["tool_calls"][0]["id"] == "functions.get_weather:0"
        assert sent[2] == {"role": "tool", "tool_call_id": "functions.get_weather:0", "content": "sunny"}

    async def test_the_sdks_tool_runner_ends_with_the_answer(self) -> None:
        @anthropic.beta_async_tool
        async def get_weather(city: str, days: int) -> str:
            """The weather."""
            return f"{city}: sunny for {days} days"

        call = {
            "id": "c1", "type": "function",
            "function": {"name": "get_weather", "arguments": '{"city": "Oslo", "days": 2}'},
        }  # fmt: skip
        answers = [whole_call(call), whole("Sunny.")]

        async def handle(engine: Engine, send: Any, _: bytes) -> None:
            await start(send)
            await end(send, json.dumps(answers[len(engine.requests) - 1]).encode())

        async with gateway(Engine(handle)) as (client, _):
            runner = client.beta.messages.tool_runner(model="m", max_tokens=99, messages=HELLO, tools=[get_weather])
            last = await runner.until_done()
        assert last.content[0].model_dump()["text"] == "Sunny."


class TestErrors:
    async def test_a_conversation_that_only_the_server_would_have_is_not_found_in_the_words_on_which_it_is_sent_again(
        self,
    ) -> None:
        engine = answering()
        async with gateway(engine) as (client, _):
            thread = {"type": "continue", "previous_message_id": "msg_1"}
            with pytest.raises(anthropic.NotFoundError) as refused:
                await client.messages.create(model="m", max_tokens=9, messages=HELLO, extra_body={"thread": thread})
            body: Any = refused.value.body
            assert body["error"]["details"] == {"error_code": "thread_not_found"}
            await client.messages.create(
                model="m", max_tokens=9, messages=HELLO, extra_body={"thread": {"type": "create"}}
            )
        assert len(engine.requests) == 1

    async def test_an_overflow_has_the_words_on_which_clients_compact(self) -> None:
        text = "This model's maximum context length is 4096 tokens. However, your prompt contains 5000 input tokens."
        engine = answering({"error": {"message": text, "type": "BadRequestError", "param": None, "code": 400}}, 400)
        async with gateway(engine) as (client, _):
            with pytest.raises(anthropic.BadRequestError, match="prompt is too long: 5000 tokens > 4096 maximum"):
                await client.messages.create(model="m", max_tokens=9, messages=HELLO)

    @pytest.mark.parametrize("last", [frame({"error": {"message": "out of memory"}}), b""])
    async def test_a_stream_that_breaks_ends_with_one_error_and_no_stop(self, last: bytes) -> None:
        engine = streaming(
            [frame(chunk({"content": "It is"})), last, DONE] if last else [frame(chunk({"content": "I"}))]
        )
        async with gateway(engine) as (_, url):
            events = await raw_events(url, {"model": "m", "max_tokens": 9, "messages": HELLO, "stream": True})
        kinds = [event["type"] for event in events]
        assert kinds[-1] == "error"
        assert events[-1]["error"]["type"] == "api_error"
        assert not {"message_stop", "message_delta"} & {*kinds}

    async def test_no_pool_is_an_overload_with_the_time_to_wait(self) -> None:
        pools = {
            ("m", name): RemotePool(Endpoint("http://127.0.0.1:9", None), {}) for name in ("speculative", "standard")
        }
        async with running(config(), {}, pools) as stack:
            client = anthropic.AsyncAnthropic(base_url=stack.url, api_key="none", max_retries=0)
            async with client:
                with pytest.raises(anthropic.APIStatusError) as failed:
                    await client.messages.create(model="m", max_tokens=9, messages=HELLO)
        assert failed.value.status_code == 529
        assert failed.value.response.headers["retry-after"] == "2"

    async def test_what_cannot_be_translated_is_an_error_before_any_engine_is_asked(self) -> None:
        engine = answering()
        async with gateway(engine) as (client, _):
            odd: Any = [{"role": "user", "content": [{"type": "audio"}]}]
            with pytest.raises(anthropic.BadRequestError, match=r"messages\.0\.content\.0: Input tag 'audio'"):
                await client.messages.create(model="m", max_tokens=9, messages=odd)
        assert not engine.requests


class TestStreams:
    async def test_a_silent_engine_does_not_make_a_silent_stream(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("serve.proxy.exchange.KEEP_ALIVE_S", 0.01)
        body = {"model": "m", "max_tokens": 9, "messages": HELLO, "stream": True}
        async with (
            gateway(silent()) as (_, url),
            aiohttp.ClientSession() as session,
            session.post(f"{url}/v1/messages?beta=true", json=body) as response,
        ):
            lines = [line async for line in first_lines(response, 9)]
        assert [line for line in lines if line.startswith("event")] == [
            "event: message_start", "event: ping", "event: ping"
        ]  # fmt: skip

    async def test_an_error_after_the_first_ping_is_in_the_stream(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("serve.proxy.exchange.KEEP_ALIVE_S", 0.01)

        async def handle(engine: Engine, send: Any, _: bytes) -> None:
            await asyncio.sleep(0.3)
            await start(send, 400)
            await end(send, b'{"error": {"message": "no"}}')

        async with gateway(Engine(handle)) as (_, url):
            events = await raw_events(url, {"model": "m", "max_tokens": 9, "messages": HELLO, "stream": True})
        kinds = [event["type"] for event in events]
        assert (kinds[0], kinds[-1]) == ("message_start", "error")
        assert events[-1]["error"] == {"type": "invalid_request_error", "message": "no"}

    @pytest.mark.parametrize(
        "unseen",
        [{"reasoning": "hm"}, {"tool_calls": [{"index": 0, "function": {"arguments": " "}}]}],
        ids=["reasoning", "a call that is not whole"],
    )
    async def test_a_stream_is_silent_while_all_that_comes_waits_or_is_not_for_its_client(
        self, unseen: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("serve.proxy.exchange.KEEP_ALIVE_S", 0.05)
        frames = [frame(chunk({"role": "assistant"})), *[frame(chunk(unseen)) for _ in range(60)]]
        body = {"model": "m", "max_tokens": 9, "messages": HELLO, "stream": True}
        async with gateway(streaming(frames, pause_s=0.01)) as (_, url):
            events = await raw_events(url, body)
        assert [event["type"] for event in events].count("ping") >= 2

    async def test_no_ping_comes_within_an_event_that_its_client_is_slow_to_read(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("serve.proxy.exchange.KEEP_ALIVE_S", 0.01)
        said = "x" * 8_000_000  # more than all buffers on the way hold
        engine = streaming([frame(chunk({"content": said})), frame(chunk({}, "stop")), DONE])
        body = {"model": "m", "max_tokens": 9, "messages": HELLO, "stream": True}
        async with (
            gateway(engine) as (_, url),
            aiohttp.ClientSession() as session,
            session.post(f"{url}/v1/messages", json=body) as response,
        ):
            await asyncio.sleep(0.5)
            text = (await response.read()).decode()
        events = [json.loads(line.removeprefix("data: ")) for line in text.split("\n") if line.startswith("data: ")]
        assert "".join(event["delta"]["text"] for event in events if event["type"] == "content_block_delta") == said

    async def test_reasoning_that_the_client_does_not_see_counts_once_in_the_estimate(self) -> None:
        thoughts = [frame(chunk({"reasoning": "abcd"})) for _ in range(40)]
        engine = streaming([*thoughts, frame(chunk({"content": "abcd"})), frame(chunk({}, "stop")), DONE])
        async with (
            gateway(engine) as (client, _),
            client.messages.stream(model="m", max_tokens=99, messages=HELLO) as stream,
        ):
            message = await stream.get_final_message()
        assert message.usage.output_tokens == 41

    async def test_a_server_that_does_not_stream_is_read_all_the_same(self) -> None:
        async with (
            gateway(answering(whole("hello"))) as (client, _),
            client.messages.stream(model="m", max_tokens=9, messages=HELLO) as stream,
        ):
            message = await stream.get_final_message()
        assert (message.content[0].model_dump()["text"], message.stop_reason) == ("hello", "end_turn")

    async def test_a_long_conversation_with_many_results_is_translated(self) -> None:
        number = 10_000
        calls = [{"type": "tool_use", "id": f"c{n}", "name": "get_weather", "input": {}} for n in range(number)]
        results = [{"type": "tool_result", "tool_use_id": f"c{n}", "content": "x" * 50} for n in range(number)]
        conversation: Any = [*HELLO, {"role": "assistant", "content": calls}, {"role": "user", "content": results}]
        engine = answering()
        async with gateway(engine) as (client, _):
            await client.messages.create(model="m", max_tokens=9, messages=conversation)
        assert len(json.loads(engine.requests[0][1])["messages"]) == number + 2


class TestCountTokens:
    async def test_an_engine_counts(self) -> None:
        engine = answering({"count": 7, "max_model_len": 4096, "tokens": [1] * 7})
        async with gateway(engine) as (client, _):
            counted = await client.messages.count_tokens(model="m", messages=HELLO, tools=TOOLS)
        assert counted.input_tokens == 7

    async def test_where_no_engine_counts_the_gateway_estimates_and_says_so(self) -> None:
        async with gateway(answering({"detail": "Not Found"}, 404)) as (client, _):
            raw = await client.messages.with_raw_response.count_tokens(model="m", messages=HELLO)
        assert raw.headers["x-specgate-estimate"] == "true"
        assert json.loads(await raw.text())["input_tokens"] > 1

    async def test_an_unknown_model_has_no_estimate(self) -> None:
        async with gateway(answering()) as (client, _):
            with pytest.raises(anthropic.BadRequestError):
                await client.messages.count_tokens(model="nope", messages=HELLO)


class TestExplain:
    async def test_a_body_of_the_dialect_is_explained_as_it_is_decided(self) -> None:
        async with connected(SOUND) as (_, stack, _):
            explained, _ = await explanation(
                stack.gateway, json.dumps({**CALL, "model": "m:nospec"}).encode(), {}, "messages"
            )
        assert explained["speculative"] is False
        assert "tools" in str(explained)

    @pytest.mark.parametrize("api", ["", "count_tokens", "soap"])
    async def test_an_unknown_api_is_named(self, api: str) -> None:
        async with connected(SOUND) as (_, stack, _):
            with pytest.raises(InvalidRequestError, match="`api` must be one of chat, messages"):
                await explanation(stack.gateway, b"{}", {}, api)


@pytest.mark.parametrize(("limit", "sent"), [(4095, 4095), (4096, None), (32000, None)])
async def test_a_limit_beyond_what_is_left_of_the_context_is_left_to_the_context(limit: int, sent: int | None) -> None:
    choice = {"index": 0, "message": {"content": "Once"}, "finish_reason": "length"}
    usage = {"prompt_tokens": 96, "completion_tokens": 4000}
    engine = answering({"choices": [choice], "usage": usage})
    body = {"model": "m", "max_tokens": limit, "messages": HELLO}
    async with running(config(), {("m", "speculative"): engine, ("m", "standard"): engine}) as stack:
        app = hot_routes(stack.gateway, {"m": 4096}.get)["/v1/messages"]
        async with (
            listening(fastapi.FastAPI(), {"/v1/messages": app}) as front,
            aiohttp.ClientSession() as session,
            session.post(f"{front.url}/v1/messages", json=body) as response,
        ):
            assert (await response.json())["stop_reason"] == "model_context_window_exceeded"
    assert json.loads(engine.requests[0][1]).get("max_tokens") == sent


def test_names_that_clients_choose_are_safe_in_a_header() -> None:
    assert dropped_header(("tools.a\r\nset-cookie: x", "é", "b", "b")) == "tools.a__set-cookie:_x,_,b"
    assert len(dropped_header(tuple(f"{'x' * 999}{n}" for n in range(999)))) < 4096


@asynccontextmanager
async def gateway(engine: Any) -> AsyncIterator[tuple[anthropic.AsyncAnthropic, str]]:
    """A gateway in front of one engine in both pools, and its client."""
    async with (
        running(config(), {("m", "speculative"): engine, ("m", "standard"): engine}) as stack,
        anthropic.AsyncAnthropic(base_url=stack.url, api_key="none", max_retries=0) as client,
    ):
        yield client, stack.url


async def raw_events(url: str, body: Any) -> list[dict[str, Any]]:
    async with aiohttp.ClientSession() as session, session.post(f"{url}/v1/messages", json=body) as response:
        text = (await response.read()).decode()
    return [json.loads(line.removeprefix("data: ")) for line in text.split("\n") if line.startswith("data: ")]


async def first_lines(response: aiohttp.ClientResponse, count: int) -> AsyncIterator[str]:
    for _ in range(count):
        yield (await response.content.readline()).decode().strip()


def whole_call(call: dict[str, Any]) -> dict[str, Any]:
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    return {**whole(""), "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}
