"""The request path over real HTTP, against engines that behave in every way an engine can."""

import asyncio
import errno
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from support.clock import until
from support.engines import Engine, answering, chunk, end, frame, silent, start, streaming, whole
from support.holds import as_hold
from support.stack import listening, running

from policies import Cell, Policy, QuarantineReason, TrialTerms, quarantine
from serve.errors import GatewayError, OverloadedError, PoolUnavailableError
from serve.gateway.endpoints import explanation
from serve.proxy.exchange import Api
from serve.quarantine.live_policy import LivePolicy
from serve.request.body_reader import RequestReader
from serve.routing.fair_queue import Asker
from serve.routing.pool import Affinity, Endpoint
from serve.routing.remote_pool import RemotePool

HELLO = [{"role": "user", "content": "hello"}]
CHAT = {"model": "m", "messages": HELLO}
NO_ADVISORIES = str(Path(__file__).parents[1] / "support" / "advisories")
DONE = b"data: [DONE]\n\n"
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


def config(**more: Any) -> dict[str, Any]:
    """Two remote pools: one that speculates (and is never allowed for tools), one that does not."""
    return {
        "models": {
            "m": {
                "family": "qwen3",
                "grammar": "hermes",
                "aliases": ["also-m"],
                "pools": {
                    "speculative": {
                        "kind": "remote",
                        "url": "http://unused",
                        "facts": {
                            "engine": "vllm",
                            "engine_version": "0.32.0",
                            "method": "draft_model",
                            "settings": {"rejection_sample_method": "standard"},
                        },
                    },
                    "standard": {
                        "kind": "remote",
                        "url": "http://unused",
                        "facts": {"engine": "vllm", "engine_version": "0.32.0", "method": "none"},
                    },
                },
            }
        },
        "policy": {
            "advisories": NO_ADVISORIES,
            "overrides": [
                {
                    "action": "forbid",
                    "reason": "not proven",
                    "pool": "speculative",
                    "classes": ["tools_auto", "tools_forced", "json_object", "json_schema"],
                }
            ],
        },
        **more,
    }


FULL = OverloadedError("full", retry_after_s=2.0)
DOWN = PoolUnavailableError("down", retry_after_s=2.0)


class FullPool:
    """A pool without capacity.

    Attributes:
        asked: Reservations.
    """

    def __init__(self, error: GatewayError) -> None:
        self._error = error
        self.asked = 0
        self.full = False
        self.ready = False
        self.head_start_s = 10.0
        self.replicas = 0

    @as_hold
    @asynccontextmanager
    async def reserve(self, affinity: Affinity, asker: Asker) -> AsyncIterator[Endpoint]:
        self.asked += 1
        raise self._error
        yield  # a generator needs one

    async def facts(self) -> dict[str, Any]:
        return {}


JSON = {"content-type": "application/json"}


def pools(speculative: Engine, standard: Engine) -> dict[tuple[str, str], Engine]:
    return {("m", "speculative"): speculative, ("m", "standard"): standard}


async def post(url: str, body: Any, **headers: str) -> tuple[int, dict[str, str], bytes]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {**JSON, **headers}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/v1/chat/completions", data=data, headers=headers) as response,
    ):
        return response.status, {k.lower(): v for k, v in response.headers.items()}, await response.read()


def error_of(body: bytes) -> dict[str, Any]:
    error: dict[str, Any] = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


class TestDecision:
    async def test_plain_chat_goes_to_the_speculative_pool_and_says_so(self) -> None:
        fast, slow = answering(), answering()
        async with running(config(), pools(fast, slow)) as stack:
            status, headers, _ = await post(stack.url, CHAT)
        assert (status, len(fast.requests), len(slow.requests)) == (200, 1, 0)
        assert headers["x-specgate-pool"] == "speculative"
        assert headers["x-specgate-speculative"] == "on"
        assert headers["x-request-id"]

    async def test_tools_go_to_the_standard_pool_and_the_reason_is_named(self) -> None:
        fast, slow = answering(), answering()
        async with running(config(), pools(fast, slow)) as stack:
            _, headers, _ = await post(stack.url, {**CHAT, "tools": [TOOL]})
        assert (len(fast.requests), len(slow.requests)) == (0, 1)
        assert headers["x-specgate-pool"] == "standard"
        assert headers["x-specgate-speculative"] == "off"
        assert headers["x-specgate-reasons"]

    @pytest.mark.parametrize("fields", [{}, {"tools": [TOOL]}, {"enable_speculative": False}])
    @pytest.mark.parametrize("name", ["m", "also-m"])
    async def test_a_remote_engine_may_serve_the_model_under_any_name(self, name: str, fields: dict[str, Any]) -> None:
        served = "/model_files/m"
        chunks = [{**chunk({"role": "assistant", "content": f'"model":"{served}"'}), "model": served},
                  {**chunk({}, "stop"), "model": served}]  # fmt: skip
        settings = config()
        for pool in settings["models"]["m"]["pools"].values():
            pool["served_name"] = served
        for streamed in (True, False):
            fast = streaming([*map(frame, chunks), DONE]) if streamed else answering({**whole("hi"), "model": served})
            async with running(settings, pools(fast, fast)) as stack:
                status, _, body = await post(stack.url, {**CHAT, "model": name, "stream": streamed, **fields})
            assert status == 200
            assert json.loads(fast.requests[0][1])["model"] == served
            documents = [json.loads(line[6:]) for line in body.split(b"\n\n") if line.startswith(b"data: {")]
            assert {each["model"] for each in (documents if streamed else [json.loads(body)])} == {"m"}
            assert not streamed or documents[0]["choices"][0]["delta"]["content"] == f'"model":"{served}"'

    async def test_each_pool_gets_earlier_reasoning_under_the_name_that_it_reads(self) -> None:
        fast, slow = answering(status=500), answering()
        settings = config()
        settings["models"]["m"]["pools"]["speculative"]["reasoning_field"] = "reasoning_content"
        settings["models"]["m"]["pools"]["standard"]["reasoning_field"] = "reasoning"
        turn = {"role": "assistant", "content": "so", "reasoning": "hm"}
        async with running(settings, pools(fast, slow)) as stack:
            status, _, _ = await post(stack.url, {**CHAT, "messages": [*HELLO, turn, *HELLO]})
        assert status == 200
        reply = [json.loads(engine.requests[0][1])["messages"][1] for engine in (fast, slow)]
        assert reply == [{"role": "assistant", "content": "so", "reasoning_content": "hm"}, turn]

    @pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
    @pytest.mark.parametrize(
        "fields",
        [{"logit_bias": {"5": -100}}, {"min_p": 0.1}, {"min_p": 0.1, "enable_speculative": False},
         {"logit_bias": {"5": 1}, "enable_speculative": True}],
    )  # fmt: skip
    async def test_sampling_that_a_speculating_vllm_refuses_reaches_the_pool_without_a_drafter(
        self, path: str, fields: dict[str, Any]
    ) -> None:
        fast, slow = answering(), answering()
        settings = config(policy={})
        settings["models"]["m"]["pools"]["speculative"]["opt_out"] = True
        body = {"model": "m", "messages": HELLO} if "chat" in path else {"model": "m", "prompt": "hello"}
        async with (
            running(settings, pools(fast, slow)) as stack,
            aiohttp.ClientSession() as session,
            session.post(f"{stack.url}{path}", json=body | fields) as response,
        ):
            assert response.status == 200
            assert "sampling-refused-by-speculation" in response.headers["x-specgate-reasons"]
        assert (len(fast.requests), len(slow.requests)) == (0, 1)

    async def test_without_such_a_pool_the_refusal_names_the_fields(self) -> None:
        fast = answering()
        settings = config(policy={})
        del settings["models"]["m"]["pools"]["standard"]
        async with running(settings, {("m", "speculative"): fast}) as stack:
            status, _, body = await post(stack.url, {**CHAT, "min_p": 0.1})
        assert status == 422
        assert "min_p" in error_of(body)["message"]
        assert not fast.requests

    async def test_enable_speculative_false_is_granted_in_the_body_and_in_the_header(self) -> None:
        fast, slow = answering(), answering()
        async with running(config(), pools(fast, slow)) as stack:
            await stack.client.chat.completions.create(
                model="m", messages=HELLO, extra_body={"enable_speculative": False}
            )
            await post(stack.url, CHAT, **{"x-enable-speculative": "false"})
        assert (len(fast.requests), len(slow.requests)) == (0, 2)

    @pytest.mark.parametrize("value", ["no", 0, [], "true"])
    async def test_enable_speculative_must_be_a_boolean(self, value: Any) -> None:
        async with running(config(), pools(answering(), answering())) as stack:
            status, _, body = await post(stack.url, {**CHAT, "enable_speculative": value})
        assert status == 400
        assert error_of(body)["param"] == "enable_speculative"

    async def test_a_request_that_no_pool_may_serve_is_refused_with_the_reasons(self) -> None:
        settings = config()
        del settings["models"]["m"]["pools"]["standard"]
        fast = answering()
        async with running(settings, {("m", "speculative"): fast}) as stack:
            status, _, body = await post(stack.url, {**CHAT, "tools": [TOOL]})
        assert status == 422
        assert error_of(body)["code"] == "policy_conflict"
        assert "not proven" in error_of(body)["message"]
        assert not fast.requests

    async def test_a_refusal_for_want_of_facts_is_short_and_says_who_finds_them(self) -> None:
        settings = config(policy={})
        settings["models"]["m"]["pools"] = {"bare": {"kind": "remote", "url": "http://127.0.0.1:9"}}
        async with running(settings, {("m", "bare"): answering()}) as stack:
            status, _, body = await post(stack.url, {**CHAT, "tools": [TOOL]})
        message = error_of(body)["message"]
        assert status == 422
        assert (
            "(tools_auto). Facts of its engines are not known; its operator finds them with `specgate front`."
            in message
        )
        assert message.count("not known)") == 3


class TestFidelity:
    async def test_the_body_arrives_byte_for_byte(self) -> None:
        body = (
            b'{ "model":"m",\n "messages" : [{"role":"user","content":"\\u4f60\\n\xe5\xa5\xbd"}] '
            b', "strict":1.50,"nope":{"a":[ ]} }'
        )
        fast = answering()
        async with running(config(), pools(fast, answering())) as stack:
            await post(stack.url, body)
        assert fast.requests[0][1] == body

    async def test_only_our_own_field_is_taken_out(self) -> None:
        fast = answering()
        async with running(config(), pools(fast, answering())) as stack:
            await post(stack.url, b'{"model":"m","enable_speculative":true,"messages":[{"role":"user","content":"x"}]}')
        assert fast.requests[0][1] == b'{"model":"m","messages":[{"role":"user","content":"x"}]}'

    async def test_a_stream_arrives_byte_for_byte(self) -> None:
        frames = [frame(chunk({"content": text})) for text in ("你", "好", "\n\ndata: x")]
        frames += [frame(chunk({}, "stop")), DONE]
        async with running(config(), pools(streaming(frames), answering())) as stack:
            _, headers, body = await post(stack.url, {**CHAT, "stream": True})
        assert body == b"".join(frames)
        assert headers["content-type"].startswith("text/event-stream")

    @pytest.mark.parametrize("more", [{}, {"tools": [TOOL]}], ids=["plain", "guarded"])
    async def test_a_stream_asks_nginx_not_to_gather_it_and_a_whole_answer_does_not(self, more: dict[str, Any]) -> None:
        frames = [frame(chunk({"content": "hi"})), frame(chunk({}, "stop")), DONE]
        said = []
        for stream, engine in ((True, streaming(frames)), (False, answering())):
            async with running(config(), pools(engine, engine)) as stack:
                _, headers, _ = await post(stack.url, {**CHAT, **more, "stream": stream})
            said.append(headers.get("x-accel-buffering"))
        assert said == ["no", None]

    async def test_what_is_private_does_not_reach_the_engine_and_the_rest_does(self) -> None:
        fast = answering()
        sent = {
            "cookie": "a=b",
            "x-forwarded-for": "1.2.3.4",
            "forwarded": "for=1.2.3.4",
            "authorization": "Bearer theirs",
            "x-specgate-pool": "standard",
            "x-request-timeout-seconds": "1",
            "x-request-id": "mine",
            "x-session-id": "s1",
            "baggage": "secret=1",
            "api-key": "theirs",
            "x-data-parallel-rank": "1",
            "content-encoding": "identity",
            "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        }
        async with running(config(), pools(fast, answering())) as stack:
            await post(stack.url, CHAT, **sent)
        got = fast.requests[0][0]
        assert not {"cookie", "x-forwarded-for", "forwarded", "authorization", "x-specgate-pool"} & set(got)
        assert "x-request-timeout-seconds" not in got
        assert not {"x-session-id", "baggage", "api-key", "x-data-parallel-rank", "content-encoding"} & set(got)
        assert "mine" not in got["x-request-id"]
        assert got["traceparent"].split("-")[1] == "0af7651916cd43dd8448eb211c80319c"

    async def test_listed_headers_reach_the_engine(self) -> None:
        fast = answering()
        settings = config(requests={"pass_headers": ["x-session-id", "baggage"]})
        async with running(settings, pools(fast, answering())) as stack:
            await post(stack.url, CHAT, **{"x-session-id": "s1", "baggage": "team=a"})
        assert fast.requests[0][0]["x-session-id"] == "s1"
        assert fast.requests[0][0]["baggage"] == "team=a"

    @pytest.mark.parametrize("given", ["a b", "x" * 129, "http://10.0.0.1/", "ab\u00e9", ""])
    async def test_an_odd_request_id_is_replaced_and_echoed_nowhere(self, given: str) -> None:
        fast = answering()
        async with running(config(), pools(fast, answering())) as stack:
            _, headers, _ = await post(stack.url, CHAT, **{"x-request-id": given})
        assert len(headers["x-request-id"]) == 32
        assert fast.requests[0][0]["x-request-id"] == headers["x-request-id"] + "-1"

    async def test_every_attempt_has_an_id_of_its_own(self) -> None:
        fast, slow = answering(status=503), answering(status=503)
        async with running(config(), pools(fast, slow)) as stack:
            _, headers, _ = await post(stack.url, CHAT, **{"x-request-id": "mine"})
        ids = [got["x-request-id"] for got, _ in (*fast.requests, *slow.requests)]
        assert sorted(each.rpartition("-")[2] for each in ids) == ["1", "2", "3"]
        assert len({each.rpartition("-")[0] for each in ids}) == 1
        assert headers["x-request-id"] == "mine"

    async def test_two_requests_of_one_id_are_two_to_the_engine(self) -> None:
        fast = answering()
        async with running(config(), pools(fast, answering())) as stack:
            await asyncio.gather(*(post(stack.url, CHAT, **{"x-request-id": "mine"}) for _ in range(2)))
        first, second = (got["x-request-id"] for got, _ in fast.requests)
        assert first != second

    async def test_an_engine_cannot_speak_in_our_name_or_set_cookies(self) -> None:
        engine = answering(x_specgate_pool="forged", set_cookie="a=b", server="vllm", x_ratelimit_limit_requests="yes")
        async with running(config(), pools(engine, answering())) as stack:
            _, headers, _ = await post(stack.url, CHAT)
        assert headers["x-specgate-pool"] == "speculative"
        assert headers["x-ratelimit-limit-requests"] == "yes"
        assert "set-cookie" not in headers

    async def test_the_openai_client_reads_answers_and_streams(self) -> None:
        frames = [frame(chunk({"role": "assistant", "content": ""})), frame(chunk({"content": "hi"}, "stop")), DONE]

        async def both(engine: Engine, send: Any, body: bytes) -> None:
            if json.loads(body).get("stream"):
                await start(send, kind="text/event-stream")
                await end(send, b"".join(frames))
            else:
                await start(send)
                await end(send, json.dumps(whole("hi")).encode())

        async with running(config(), pools(Engine(both), answering())) as stack:
            answer = await stack.client.chat.completions.create(model="also-m", messages=HELLO)
            stream = await stack.client.chat.completions.create(model="m", messages=HELLO, stream=True)
            parts = [part.choices[0].delta.content or "" async for part in stream]
        assert (answer.choices[0].message.content, "".join(parts)) == ("hi", "hi")


class TestClientFaults:
    async def test_an_unknown_model_is_404_and_the_known_ones_are_named(self) -> None:
        async with running(config(), pools(answering(), answering())) as stack:
            with pytest.raises(openai.NotFoundError, match="Known models: m"):
                await stack.client.chat.completions.create(model="gpt-9", messages=HELLO)

    @pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"model":1}', b'{"messages":[]}', b"\xff\xfe", b"null"])
    async def test_a_malformed_body_is_400(self, body: bytes) -> None:
        async with running(config(), pools(answering(), answering())) as stack:
            status, _, answer = await post(stack.url, body)
        assert status == 400
        assert error_of(answer)["type"] == "invalid_request_error"

    @pytest.mark.parametrize("chunked", [False, True])
    async def test_a_body_over_the_limit_is_413(self, chunked: bool) -> None:
        async def pieces() -> Any:
            for _ in range(4):
                yield b"x" * 1000

        async with (
            running(config(limits={"max_body_bytes": 1000}), pools(answering(), answering())) as stack,
            aiohttp.ClientSession() as session,
            session.post(
                f"{stack.url}/v1/chat/completions", data=pieces() if chunked else b"x" * 4000, headers=JSON
            ) as response,
        ):
            assert response.status == 413
            assert error_of(await response.read())["code"] == "body_too_large"

    async def test_the_engines_400_passes_as_it_is_and_is_not_retried(self) -> None:
        theirs = {"error": {"message": "bad temperature", "type": "BadRequestError", "param": None, "code": 400}}
        fast, slow = answering(theirs, 400), answering()
        async with running(config(), pools(fast, slow)) as stack:
            status, _, body = await post(stack.url, CHAT)
        assert (status, json.loads(body)) == (400, theirs)
        assert (len(fast.requests), len(slow.requests)) == (1, 0)

    async def test_an_engines_400_without_an_error_is_worded_for_openais_clients(self) -> None:
        async with (
            running(config(), pools(answering({"detail": "bad temperature"}, 400), answering())) as stack,
            openai.AsyncOpenAI(base_url=f"{stack.url}/v1", api_key="none") as client,
        ):
            with pytest.raises(openai.BadRequestError, match="bad temperature") as raised:
                await client.chat.completions.create(**CHAT)
        assert raised.value.code == "engine_error"


class TestEngineFaults:
    async def test_a_dead_replica_is_replaced_by_another_allowed_pool_before_the_first_byte(self) -> None:
        slow = answering()
        gone = {("m", "speculative"): RemotePool(Endpoint("http://127.0.0.1:1", None), {})}
        async with running(config(), {("m", "standard"): slow}, gone) as stack:
            status, headers, _ = await post(stack.url, CHAT)
        assert (status, headers["x-specgate-pool"], headers["x-specgate-speculative"]) == (200, "standard", "off")

    async def test_nobody_answering_is_503_with_retry_after_and_no_address(self) -> None:
        gone = RemotePool(Endpoint("http://127.0.0.1:1", None), {})
        dead_pools = {("m", "speculative"): gone, ("m", "standard"): gone}
        async with running(config(), {}, dead_pools) as stack:
            status, headers, body = await post(stack.url, CHAT)
        assert status == 503
        assert int(headers["retry-after"]) >= 1
        assert error_of(body)["code"] == "pool_unavailable"
        assert b"127.0.0.1" not in body

    async def test_a_tools_request_never_falls_back_to_a_forbidden_pool(self) -> None:
        fast = answering()
        gone = {("m", "standard"): RemotePool(Endpoint("http://127.0.0.1:1", None), {})}
        async with running(config(), {("m", "speculative"): fast}, gone) as stack:
            status, _, _ = await post(stack.url, {**CHAT, "tools": [TOOL]})
        assert status == 503
        assert not fast.requests

    async def test_a_500_is_retried_elsewhere(self) -> None:
        fast, slow = answering({"error": {"message": "boom"}}, 500), answering()
        async with running(config(), pools(fast, slow)) as stack:
            status, headers, _ = await post(stack.url, CHAT)
        assert (status, headers["x-specgate-pool"]) == (200, "standard")

    async def test_a_500_that_every_replica_answers_reaches_the_client(self) -> None:
        engine = answering({"error": {"message": "boom", "type": "x", "param": None, "code": 500}}, 500)
        async with running(config(), pools(engine, engine)) as stack:
            status, _, body = await post(stack.url, CHAT)
        assert (status, error_of(body)["message"]) == (500, "boom")
        assert len(engine.requests) == 3

    @pytest.mark.parametrize("error", [FULL, DOWN], ids=["full", "down"])
    async def test_a_full_pool_is_passed_over_at_once_and_costs_no_attempt(self, error: GatewayError) -> None:
        single, refusing = config(limits={"max_attempts": 1}), FullPool(error)
        async with running(single, {("m", "standard"): answering()}, {("m", "speculative"): refusing}) as stack:
            status, headers, _ = await post(stack.url, CHAT)
        assert (status, headers["x-specgate-pool"]) == (200, "standard")
        assert refusing.asked == 1

    @pytest.mark.parametrize(("error", "status"), [(FULL, 429), (DOWN, 503)], ids=["full", "down"])
    async def test_full_pools_are_an_error_with_retry_after(self, error: GatewayError, status: int) -> None:
        first, last = FullPool(error), FullPool(error)
        async with running(config(), {}, {("m", "speculative"): first, ("m", "standard"): last}) as stack:
            received, headers, body = await post(stack.url, CHAT)
        assert (received, headers["retry-after"], error_of(body)["code"]) == (status, "2", error.code)
        assert (first.asked, last.asked) == (1, 1)

    async def test_the_engines_429_passes_with_its_retry_after_if_no_other_pool_has_room(self) -> None:
        engine = answering(
            {"error": {"message": "busy", "type": "x", "param": None, "code": 429}}, 429, retry_after="7"
        )
        async with running(config(), pools(engine, engine)) as stack:
            status, headers, _ = await post(stack.url, CHAT)
        assert (status, headers["retry-after"]) == (429, "7")
        async with running(config(), pools(engine, answering())) as stack:
            status, headers, _ = await post(stack.url, CHAT)
        assert (status, headers["x-specgate-pool"]) == (200, "standard")

    @pytest.mark.parametrize("resume", ["all", "off"])
    async def test_a_whole_answer_that_breaks_off_is_asked_of_another_pool(self, resume: str) -> None:
        async def breaks(engine: Engine, send: Any, _: bytes) -> None:
            await start(send, kind="application/json", content_length="1000")
            await send({"type": "http.response.body", "body": b'{"id": "half', "more_body": True})
            await asyncio.sleep(0.05)
            raise ConnectionResetError

        engine, settings = Engine(breaks), config()
        settings["models"]["m"]["guard"] = {"resume": resume}
        async with running(settings, pools(engine, answering())) as stack:
            status, headers, _ = await post(stack.url, CHAT)
        assert (status, headers["x-specgate-pool"], len(engine.requests)) == (200, "standard", 1)

    async def test_a_stream_that_breaks_ends_with_one_error_frame_and_no_done(self) -> None:
        async def breaks(engine: Engine, send: Any, _: bytes) -> None:
            await start(send, kind="text/event-stream", content_length="1000")
            await send({"type": "http.response.body", "body": frame(chunk({"content": "hal"})), "more_body": True})
            await asyncio.sleep(0.05)
            raise ConnectionResetError

        async with running(config(), pools(Engine(breaks), answering())) as stack:
            status, _, body = await post(stack.url, {**CHAT, "stream": True})
        frames = body.split(b"\n\n")
        assert status == 200
        assert b"hal" in frames[0]
        assert error_of(frames[1].removeprefix(b"data: "))["code"] == "engine_error"
        assert DONE not in body

    async def test_a_stream_that_just_stops_is_not_a_clean_end(self) -> None:
        async with running(config(), pools(streaming([frame(chunk({"content": "hal"}))]), answering())) as stack:
            with pytest.raises(openai.APIError, match="before the answer was complete"):
                async for _ in await stack.client.chat.completions.create(model="m", messages=HELLO, stream=True):
                    pass

    async def test_the_engines_own_error_frame_passes_without_its_done(self) -> None:
        failed = frame({"error": {"message": "EngineCore died", "type": "x", "param": None, "code": 500}})
        engine = streaming([frame(chunk({"content": "a"})), failed, DONE], pause_s=0.01)
        async with running(config(), pools(engine, answering())) as stack:
            _, _, body = await post(stack.url, {**CHAT, "stream": True})
        assert body.endswith(failed)

    async def test_an_engine_that_falls_silent_is_given_up(self) -> None:
        engine = streaming([frame(chunk({"content": "a"}))], hang=True)
        async with running(config(limits={"stream_idle_timeout_s": 0.3}), pools(engine, answering())) as stack:
            _, _, body = await post(stack.url, {**CHAT, "stream": True})
        assert b"engine_stalled" in body
        assert engine.cancelled == 1

    async def test_a_whole_answer_has_a_deadline_and_the_engine_is_freed(self) -> None:
        engine = silent()
        async with running(config(limits={"request_timeout_s": 0.3}), pools(engine, engine)) as stack:
            status, _, body = await post(stack.url, CHAT)
            await until(lambda: engine.cancelled)
        assert (status, error_of(body)["code"]) == (504, "deadline_exceeded")
        assert engine.cancelled == len(engine.requests) == 1


class TestDisconnect:
    @pytest.mark.parametrize("streamed", [False, True])
    async def test_a_client_that_leaves_in_prefill_frees_the_engine(self, streamed: bool) -> None:
        engine = silent()
        async with running(config(), pools(engine, engine)) as stack:
            asking = asyncio.ensure_future(
                stack.client.chat.completions.create(model="m", messages=HELLO, stream=streamed)
            )
            await until(lambda: engine.requests)
            asking.cancel()
            await until(lambda: engine.cancelled)
            assert engine.cancelled == len(engine.requests) == 1

    async def test_a_client_that_leaves_in_the_stream_frees_the_engine(self) -> None:
        engine = streaming([frame(chunk({"content": "a"}))], hang=True)
        async with running(config(), pools(engine, engine)) as stack:
            stream = await stack.client.chat.completions.create(model="m", messages=HELLO, stream=True)
            await anext(aiter(stream))
            await stream.close()
            await until(lambda: engine.cancelled)
            assert engine.cancelled == 1

    async def test_many_that_leave_leave_nothing_behind(self) -> None:
        engine, count = streaming([frame(chunk({"content": "a"}))], hang=True), 60

        async def leave(url: str) -> None:
            async with (
                aiohttp.ClientSession() as session,
                session.post(f"{url}/v1/chat/completions", json={**CHAT, "stream": True}) as response,
            ):
                await response.content.readany()
                response.close()

        async with running(config(), pools(engine, engine)) as stack:
            before = len(asyncio.all_tasks())
            await asyncio.gather(*(leave(stack.url) for _ in range(count)))
            await until(
                lambda: engine.cancelled == count and not stack.gateway._ongoing and len(asyncio.all_tasks()) <= before
            )


async def test_explain_decides_as_a_request_does_without_an_engine() -> None:
    engine = answering()
    async with running(config(), pools(engine, engine)) as stack:
        explained, evidence = await explanation(stack.gateway, json.dumps({**CHAT, "tools": [TOOL]}).encode(), {})
    assert (explained["pool"], explained["speculative"], explained["refused"]) == ("standard", False, False)
    assert evidence == "none"
    assert not engine.requests


async def test_explain_says_which_requests_may_be_probes_or_samples() -> None:
    class Compared(LivePolicy):
        def terms(self, model: str) -> TrialTerms:
            return TrialTerms("standard", 0.02, 0.98, True)

    def suspended(policy: Policy) -> LivePolicy:
        cells = [Cell("m", "speculative", True, kind) for kind in ("tools_auto", "plain", "json_object")]
        return Compared(quarantine(policy, dict.fromkeys(cells, QuarantineReason("bad", "measured n=10"))))

    json_mode = {"response_format": {"type": "json_object"}}
    text = {"model": "m", "prompt": "hello", "max_tokens": 9}
    forced = {"tools": [TOOL], "tool_choice": "required"}  # a class that is not out
    bodies = [{**CHAT, "tools": [TOOL]}, {**CHAT, **json_mode}, CHAT, {**text, **json_mode}, {**CHAT, **forced}]
    async with running(
        config(policy={"advisories": NO_ADVISORIES}), pools(answering(), answering()), live=suspended
    ) as stack:
        told = [(await explanation(stack.gateway, json.dumps(body).encode(), {}))[0] for body in bodies]
    said = [[each["summary"] for each in one["reasons"] if each["effect"] == "inform"] for one in told]
    probe = "probes: speculative is in quarantine for such requests; a rerun would hide its faults."
    sample = "samples: standard without speculation is measured too, to compare the others with."
    share = "0.02 of such requests are"
    assert said == [[f"{share} {probe}"], [f"{share} {probe}"], [], [], [f"{share} {sample}"]]


@pytest.mark.parametrize(("chars", "on_loop"), [(1_000, True), (300_000, False)])
async def test_a_long_body_is_read_beside_the_loop(chars: int, on_loop: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    read = RequestReader.read
    threads: list[threading.Thread] = []

    def recorded(reader: RequestReader, body: bytes) -> Any:
        threads.append(threading.current_thread())
        return read(reader, body)

    monkeypatch.setattr(RequestReader, "read", recorded)
    body = {**CHAT, "messages": [{"role": "user", "content": "a" * chars}]}
    async with running(config(), pools(answering(), answering())) as stack:
        status, _, _ = await post(stack.url, body)
        await explanation(stack.gateway, json.dumps(body).encode(), {})
    assert status == 200
    assert [thread is threading.current_thread() for thread in threads] == [on_loop, on_loop]


async def test_listening_serves_and_stops() -> None:
    async with listening(answering()) as endpoint:
        status, _, _ = await post(endpoint.url, CHAT)
        assert status == 200


async def test_a_replica_at_its_limit_refuses_and_serves_again_when_it_has_capacity() -> None:
    settings = config(max_ongoing_requests=1)
    async with running(settings, pools(silent(), answering())) as stack:
        waiting = asyncio.create_task(post(stack.url, CHAT))
        await until(lambda: stack.gateway._ongoing)
        status, headers, body = await post(stack.url, CHAT)
        assert (status, error_of(body)["code"], headers["retry-after"]) == (429, "overloaded", "2")
        waiting.cancel()
        await until(lambda: not stack.gateway._ongoing)
        status, _, _ = await post(stack.url, {**CHAT, "enable_speculative": False})
        assert status == 200


class TestLengthOfAnswers:
    @pytest.mark.parametrize("size", [5_000, 3_000_000])
    @pytest.mark.parametrize(("status", "asked"), [(200, {}), (400, {}), (200, {"tools": [TOOL]})])
    async def test_a_whole_answer_beyond_the_limit_is_an_error(self, size: int, status: int, asked: Any) -> None:
        engine = answering({"filler": "x" * size}, status)
        async with running(config(limits={"max_answer_bytes": 4_000}), pools(engine, engine)) as stack:
            status, _, body = await post(stack.url, {**CHAT, **asked})
        assert (status, error_of(body)["code"]) == (502, "engine_error")
        assert "4000 bytes" in error_of(body)["message"]

    async def test_one_within_it_arrives_as_it_is(self) -> None:
        answer = whole("x" * 3_600)
        engine = answering(answer)
        async with running(config(limits={"max_answer_bytes": 4_000}), pools(engine, engine)) as stack:
            status, _, body = await post(stack.url, CHAT)
        assert (status, json.loads(body)) == (200, answer)

    async def test_a_stream_may_be_longer_than_that(self) -> None:
        engine = streaming([frame(chunk({"content": "x" * 1000}))] * 20 + [frame(chunk({}, "stop")), DONE])
        async with running(config(limits={"max_answer_bytes": 4_000}), pools(engine, engine)) as stack:
            status, _, body = await post(stack.url, {**CHAT, "stream": True})
        assert (status, body.endswith(DONE)) == (200, True)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), (503, "out_of_memory")),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), (503, "out_of_memory")),
        (RuntimeError("can't start new thread"), (503, "out_of_memory")),
        (RuntimeError("anything else"), (500, "internal_error")),
    ],
)
async def test_whatever_says_that_no_memory_is_left_is_503_and_may_be_tried_again(
    error: Exception, said: tuple[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def read(*_: Any) -> bytes:
        raise error

    monkeypatch.setattr(Api, "decode", read)
    async with (
        running(config(), {("m", "p"): answering()}) as stack,
        aiohttp.ClientSession() as session,
        session.post(f"{stack.url}/v1/chat/completions", json={"model": "m", "messages": []}) as response,
    ):
        assert (response.status, (await response.json())["error"]["code"]) == said
        assert ("retry-after" in response.headers) == (response.status == 503)
