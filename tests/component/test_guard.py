"""The guard in the request path: what it leaves alone, what it heals, what it says of it, and how it fails."""

import json
from typing import Any

import openai
import pytest
from support.engines import Engine, answering, chunk, end, frame, start, streaming, whole
from support.guard_harness import TOOLS, calls_of, chunks_of, read, tools_request
from support.guard_stack import chunks_in, config, healing, post
from support.stack import running

from lab.sim import SimSettings
from serve.guard.core import Outcome
from serve.routing.pool import Endpoint
from serve.routing.remote_pool import RemotePool

DONE = b"data: [DONE]\n\n"
CUT = SimSettings(model="m", faults={"truncated_string": 1.0})
BROKEN = SimSettings(model="m", faults={"double_brace": 1.0})
SOUND = SimSettings(model="m")
HELLO = [{"role": "user", "content": "hello"}]


def call_delta(arguments: str, name: str = "get_weather") -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": function}]}


def message_of(answer: bytes) -> Any:
    return json.loads(answer)["choices"][0]["message"]


class TestUntouched:
    async def test_a_guarded_stream_that_is_clean_keeps_the_engines_own_bytes_of_prose(self) -> None:
        odd = b'data: { "id":"x","created":1,"model":"m", "choices":[ {"index":0,"delta":{"content":"h\\u00e9"}}]}\n\n'
        frames = [frame(chunk({"role": "assistant", "content": ""})), odd, odd, b": ping\n\n"]
        frames += [frame(chunk({}, "stop")), DONE]
        engine = streaming(frames)
        async with running(config(), {("m", "speculative"): engine, ("m", "standard"): engine}) as stack:
            _, _, body = await post(stack.url, tools_request(model="m", stream=True))
        assert body.startswith(b"".join(frames[:4]))
        assert body.endswith(DONE)

    async def test_a_whole_answer_that_is_clean_keeps_every_byte(self) -> None:
        message = b'{"role":"assistant","content":"\\u4f60"}'
        raw = b'{"id":"x", "choices":[{"index":0,"message":' + message + b',"finish_reason":"stop"}]}'

        async def handle(engine: Engine, send: Any, _: bytes) -> None:
            await start(send)
            await end(send, raw)

        engine = Engine(handle)
        async with running(config(), {("m", "speculative"): engine, ("m", "standard"): engine}) as stack:
            _, _, body = await post(stack.url, tools_request(model="m"))
        assert body == raw

    @pytest.mark.parametrize("mode", ["off", "observe"])
    @pytest.mark.parametrize("stream", [True, False])
    async def test_off_and_observe_change_no_byte_of_a_broken_answer(self, mode: str, stream: bool) -> None:
        frames = [frame(chunk(call_delta('{"city": "Os'))), frame(chunk({}, "tool_calls")), DONE]
        if stream:
            engine = streaming(frames)
        else:
            message = {"role": "assistant", "content": None, **call_delta('{"city": "Os')}
            engine = answering(
                {"id": "x", "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}
            )
        judged: list[Any] = []
        pools = {("m", "speculative"): engine, ("m", "standard"): engine}
        async with running(config(guard={"mode": mode}), pools, sink=judged.append) as stack:
            status, _, body = await post(stack.url, tools_request(model="m", stream=stream))
        assert status == 200
        assert body == b"".join(frames) if stream else message_of(body)["tool_calls"] == message["tool_calls"]
        assert len(engine.requests) == 1
        assert [(each.verdict.outcome, each.final) for each in judged] == (
            [] if mode == "off" else [(Outcome.TRUNCATED, Outcome.TRUNCATED)]
        )

    async def test_plain_requests_are_not_judged(self) -> None:
        async with healing(SOUND) as (stack, judged):
            status, _, _ = await post(stack.url, {"model": "m", "messages": HELLO})
        assert (status, judged) == (200, [])

    @pytest.mark.parametrize("kind", ["sim", "remote"])
    async def test_only_engines_of_ours_are_asked_to_report_what_their_parser_could_not_read(self, kind: str) -> None:
        engine, settings = answering(), config()
        if kind == "remote":
            settings["models"]["m"]["pools"]["speculative"] |= {"kind": "remote", "url": "http://unused"}
        body = tools_request(model="m")
        async with running(settings, {("m", "speculative"): engine, ("m", "standard"): engine}) as stack:
            await post(stack.url, body)
        asked = {"vllm_xargs": {"specgate_violations": 1}} if kind == "sim" else {"return_token_ids": True}
        assert json.loads(engine.requests[0][1]) == body | asked

    async def test_a_refusal_by_the_engine_passes_as_it_is_and_is_not_judged(self) -> None:
        theirs = {"error": {"message": "bad tools", "type": "BadRequestError", "param": None, "code": 400}}
        judged: list[Any] = []
        pools = {("m", "speculative"): answering(theirs, 400), ("m", "standard"): answering()}
        async with running(config(), pools, sink=judged.append) as stack:
            status, _, body = await post(stack.url, tools_request(model="m", stream=True))
        assert (status, json.loads(body), judged) == (400, theirs, [])


class TestRerun:
    @pytest.mark.parametrize("stream", [True, False])
    async def test_json_asked_for_in_vllms_own_field_is_healed(self, stream: bool) -> None:
        schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
        body = {"model": "m", "messages": HELLO, "stream": stream, "structured_outputs": {"json": schema}}

        def saying(text: str) -> Engine:
            if stream:
                return streaming([frame(chunk({"content": text})), frame(chunk({}, "stop")), DONE])
            return answering(whole(text))

        engines = {("m", "speculative"): saying('{"city": "Be'), ("m", "standard"): saying('{"city": "Bern"}')}
        async with running(config(), engines) as stack:
            _, _, answer = await post(stack.url, body)
        message = read(chunks_in(answer)[:-1]) if stream else message_of(answer)
        assert message["content"] == '{"city": "Bern"}'

    async def test_a_whole_answer_says_where_it_was_rerun_and_counts_the_tokens_of_both(self) -> None:
        body = tools_request(1, model="m", tool_choice="required")
        async with healing(CUT) as (stack, judged):
            _, headers, answer = await post(stack.url, body)
            _, _, unhealed = await post(stack.url, {**body, "enable_speculative": False})
        assert headers["x-specgate-pool"] == "speculative"
        assert headers["x-specgate-rerun"] == "standard"
        reply = json.loads(answer)
        assert reply["specgate"]["rerun"] == "standard"
        assert reply["specgate"]["reasons"] == [str(judged[0].verdict.outcome)]
        assert reply["usage"]["completion_tokens"] > json.loads(unhealed)["usage"]["completion_tokens"]
        assert [(each.pool, each.attempt, each.final) for each in judged[:2]] == [
            ("speculative", 0, None),
            ("standard", 1, Outcome.RERUN),
        ]

    async def test_a_stream_says_so_on_its_final_chunk_and_its_usage_counts_what_both_reported(self) -> None:
        body = tools_request(1, model="m", tool_choice="required", stream=True, stream_options={"include_usage": True})
        one_call, cut = SimSettings(model="m", max_calls=1), SimSettings(model="m", max_calls=1, faults=CUT.faults)
        async with healing(cut, standard=one_call) as (stack, _):
            _, headers, answer = await post(stack.url, body)
            _, _, alone = await post(stack.url, {**body, "enable_speculative": False})
        *chunks, usage, done = chunks_in(answer)
        assert done == "[DONE]"
        assert "x-specgate-rerun" not in headers
        assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
        assert chunks[-1]["specgate"]["rerun"] == "standard"
        assert usage["usage"]["completion_tokens"] > chunks_in(alone)[-2]["usage"]["completion_tokens"]
        assert calls_of(read(chunks)) == calls_of(read(chunks_of(body, one_call)))

    async def test_an_attempt_that_was_stopped_before_it_reported_usage_is_told(self) -> None:
        body = tools_request(1, model="m", tool_choice="required", stream=True, stream_options={"include_usage": True})
        async with healing(BROKEN) as (stack, _):
            _, _, answer = await post(stack.url, body)
        reply = next(each["specgate"] for each in chunks_in(answer)[:-1] if "specgate" in each)
        assert reply == {"rerun": "standard", "reasons": ["invalid_json"], "attempts_without_usage": 1}

    async def test_without_another_pool_it_runs_again_where_it_is(self) -> None:
        answers = iter(['{"city": "Os', '{"city": "Osaka", "days": 1}'])

        async def handle(engine: Engine, send: Any, _: bytes) -> None:
            message = {"role": "assistant", "content": None, **call_delta(next(answers))}
            await start(send)
            choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
            await end(send, json.dumps({"id": "x", "choices": [choice]}).encode())

        settings = config()
        del settings["models"]["m"]["pools"]["speculative"]
        engine = Engine(handle)
        async with running(settings, {("m", "standard"): engine}) as stack:
            status, headers, answer = await post(stack.url, tools_request(model="m"))
        assert (status, headers["x-specgate-rerun"]) == (200, "standard")
        assert message_of(answer)["tool_calls"][0]["function"]["arguments"] == '{"city": "Osaka", "days": 1}'

    async def test_an_opted_out_request_never_reruns_with_speculation(self) -> None:
        body = tools_request(1, model="m", tool_choice="required", enable_speculative=False)
        async with healing(SOUND, standard=CUT) as (stack, judged):
            status, _, _ = await post(stack.url, body)
        assert status == 502
        assert {each.pool for each in judged} == {"standard"}

    @pytest.mark.parametrize("stream", [True, False])
    async def test_several_choices_are_each_whole(self, stream: bool) -> None:
        body = tools_request(3, model="m", tool_choice="required", n=3, stream=stream)
        async with healing(CUT) as (stack, _):
            _, _, answer = await post(stack.url, body)
        if stream:
            chunks = chunks_in(answer)[:-1]
            ends = [c["index"] for each in chunks for c in each["choices"] if c["finish_reason"]]
            assert sorted(ends) == [0, 1, 2]
        else:
            choices = json.loads(answer)["choices"]
            assert len(choices) == 3
            for choice in choices:
                for call in choice["message"]["tool_calls"]:
                    json.loads(call["function"]["arguments"])


class TestFailure:
    async def test_broken_everywhere_is_502_integrity_violation(self) -> None:
        async with healing(CUT, standard=CUT) as (stack, judged):
            with pytest.raises(openai.InternalServerError) as caught:
                await stack.client.chat.completions.create(
                    model="m",
                    messages=HELLO,
                    tools=TOOLS,
                    tool_choice="required",  # type: ignore[arg-type]
                )
        assert (caught.value.status_code, caught.value.code) == (502, "integrity_violation")
        assert judged[-1].final is Outcome.FAILED

    async def test_broken_everywhere_ends_a_stream_with_an_error_and_no_done(self) -> None:
        async with healing(CUT, standard=CUT) as (stack, _):
            _, _, body = await post(stack.url, tools_request(model="m", tool_choice="required", stream=True))
        chunks = chunks_in(body)
        assert chunks[-1]["error"]["code"] == "integrity_violation"
        assert "[DONE]" not in chunks
        assert not any(c["delta"].get("tool_calls") for each in chunks[:-1] for c in each["choices"])

    @pytest.mark.parametrize("stream", [True, False])
    async def test_on_failure_unclean_delivers_and_marks_it(self, stream: bool) -> None:
        async with healing(CUT, standard=CUT, guard={"on_failure": "unclean"}) as (stack, _):
            status, _, body = await post(stack.url, tools_request(model="m", tool_choice="required", stream=stream))
        assert status == 200
        reply = next(each for each in chunks_in(body) if "specgate" in each) if stream else json.loads(body)
        assert reply["specgate"]["unclean"]

    async def test_reruns_0_answers_with_the_error_at_once(self) -> None:
        async with healing(CUT, guard={"reruns": 0}) as (stack, judged):
            status, _, _ = await post(stack.url, tools_request(model="m", tool_choice="required"))
        assert (status, len(judged)) == (502, 1)

    @pytest.mark.parametrize("stream", [True, False])
    async def test_an_engine_that_breaks_off_everywhere_is_an_engine_error(self, stream: bool) -> None:
        gone = SimSettings(model="m", faults={"disconnect": 1.0})
        async with healing(gone, standard=gone) as (stack, judged):
            _, _, body = await post(stack.url, tools_request(model="m", stream=stream))
        error = (chunks_in(body)[-1] if stream else json.loads(body))["error"]
        assert error["code"] == "engine_error"
        assert [each.verdict.outcome for each in judged] == [Outcome.FAILED, Outcome.FAILED]

    async def test_no_pool_left_for_the_rerun_is_the_answers_own_error(self) -> None:
        gone = {("m", "standard"): RemotePool(Endpoint("http://127.0.0.1:1", None), {})}
        settings = {"limits": {"max_attempts": 1}}
        async with healing(CUT, routes=gone, **settings) as (stack, judged):
            status, _, body = await post(stack.url, tools_request(model="m", tool_choice="required"))
        assert (status, json.loads(body)["error"]["code"]) == (502, "integrity_violation")
        assert len(judged) == 1

    @pytest.mark.parametrize("mode", ["heal", "strict"])
    async def test_a_loose_schema_that_persists_is_marked_by_heal_and_refused_by_strict(self, mode: str) -> None:
        wrong = SimSettings(model="m", faults={"empty_arguments": 1.0})
        async with healing(wrong, standard=wrong, guard={"mode": mode}) as (stack, _):
            status, _, body = await post(stack.url, tools_request(model="m", tool_choice="required"))
        if mode == "heal":
            assert (status, json.loads(body)["specgate"]["unclean"]) == (200, ["schema_mismatch"])
        else:
            assert (status, json.loads(body)["error"]["code"]) == (502, "integrity_violation")
