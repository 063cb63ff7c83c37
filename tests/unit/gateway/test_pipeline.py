"""The request path without sockets: what an engine is asked, and what the client gets."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.holds import as_hold

from serve.access.principal import Authenticate, everybody
from serve.config.compiled_policy import compile_for
from serve.config.gateway import GatewayConfig
from serve.config.rate_limits import RateLimitsConfig
from serve.dialects.api import DIALECTS, DialectApi
from serve.errors import InvalidApiKeyError
from serve.gateway.pipeline import Gateway, hot_routes
from serve.http1.asgi import Sink
from serve.limits.accounts import NULL_ACCOUNTS, Accounts, AnyAccounts
from serve.limits.actor import connect
from serve.proxy.exchange import Api
from serve.proxy.upstream import UpstreamResponse
from serve.quarantine.live_policy import LivePolicy
from serve.routing.fair_queue import Asker
from serve.routing.pool import Affinity, Endpoint
from serve.telemetry.instruments import Telemetry

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
WHOLE = b'{"id":"c","model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"hi"}}]}'
WORDS = [
    b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n' % word for word in (b"one ", b"two ", b"3")
]
STOP = b'data: {"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
USAGE = b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":5,"completion_tokens":3,"total_tokens":8}}\n\n'
DONE = b"data: [DONE]\n\n"


class Connection:
    """A response whose parts arrive one by one."""

    def __init__(self, parts: list[bytes], status: int, content_type: str) -> None:
        self.status = status
        self.headers = {"content-type": content_type}
        self._parts = [*parts]

    async def read(self) -> bytes:
        return self._parts.pop(0) if self._parts else b""

    async def pump(self, sink: Sink) -> None:
        while self._parts:
            sink(self._parts.pop(0))

    def stop(self) -> None:
        self._parts.clear()


class Upstream:
    """Answers every request with the same parts.

    Attributes:
        bodies: What was asked.
        paths: Where.
        asked: Set once somebody has asked.
        waits: Set by the test when it may answer; None if it answers at once.
    """

    def __init__(self, parts: list[bytes], status: int = 200, content_type: str = "text/event-stream") -> None:
        self.bodies: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.asked = asyncio.Event()
        self.waits: asyncio.Event | None = None
        self._parts, self._status, self._type = parts, status, content_type

    async def post(
        self, endpoint: Endpoint, path: str, body: Sequence[bytes], headers: Mapping[str, str]
    ) -> UpstreamResponse:
        self.bodies.append(json.loads(b"".join(body)))
        self.paths.append(path)
        self.asked.set()
        if self.waits is not None:
            await self.waits.wait()
        connection: Any = Connection(self._parts[1:], self._status, self._type)
        return UpstreamResponse(connection, self._parts[0])


class Pool:
    """A pool with room for everybody."""

    full = False
    ready = True
    head_start_s = 0.0

    @as_hold
    @asynccontextmanager
    async def reserve(self, affinity: Affinity, asker: Asker) -> AsyncIterator[Endpoint]:
        yield Endpoint("http://engine", None)

    def forget(self, endpoint: Endpoint) -> None:
        raise AssertionError("nothing fails here")


def gateway_of(
    upstream: Upstream, accounts: AnyAccounts = NULL_ACCOUNTS, authenticate: Authenticate = everybody, **settings: Any
) -> Gateway:
    config = GatewayConfig.parse(
        {
            "models": {
                "m": {
                    "family": "qwen3",
                    "grammar": "hermes",
                    "pools": {"p": {"kind": "remote", "url": "http://engine", "facts": {"method": "none"}}},
                }
            },
            **settings,
        }
    )
    pools: Any = {("m", "p"): Pool()}
    sender: Any = upstream
    live = LivePolicy(compile_for(config))
    telemetry = Telemetry({}, config=config.telemetry)
    return Gateway(config, live, pools, sender, telemetry, authenticate=authenticate, accounts=accounts)


async def ask(
    gateway: Gateway, body: Any, path: str = "/v1/chat/completions", headers: Mapping[str, str] | None = None
) -> tuple[int, dict[str, str], bytes]:
    """Asks as the listener does; returns status, headers and body of the response."""
    sent: list[Any] = []
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()

    async def receive() -> Any:
        return {"type": "http.request", "body": raw, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    given = {"content-type": "application/json", **(headers or {})}
    pairs = [(name.encode(), value.encode()) for name, value in given.items()]
    scope = {"type": "http", "method": "POST", "path": path, "headers": pairs}
    await hot_routes(gateway)[path](scope, receive, send)
    head, *parts = sent
    assert not parts[-1]["more_body"]
    named = {name.decode(): value.decode() for name, value in head["headers"]}
    return head["status"], named, b"".join(part["body"] for part in parts)


class PanicError(BaseException):
    """Like pyo3's PanicException, which is no Exception."""


class Failing(Upstream):
    """Fails by our own fault, with a request's body as the exception's text."""

    def __init__(self, kind: type[BaseException]) -> None:
        super().__init__([])
        self._kind = kind

    async def post(
        self, endpoint: Endpoint, path: str, body: Sequence[bytes], headers: Mapping[str, str]
    ) -> UpstreamResponse:
        raise self._kind(b"".join(body).decode())


@pytest.mark.parametrize("kind", [KeyError, PanicError])
async def test_a_fault_of_our_own_is_a_500_and_the_log_quotes_nothing(
    kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    status, _, body = await ask(gateway_of(Failing(kind)), CHAT)
    assert (status, json.loads(body)["error"]["code"]) == (500, "internal_error")
    assert f"a request failed: {kind.__name__}\n" in caplog.text
    assert "hello" not in caplog.text


async def test_a_whole_answer_passes_as_it_is() -> None:
    upstream = Upstream([WHOLE], content_type="application/json")
    status, headers, body = await ask(gateway_of(upstream), CHAT)
    assert (status, body) == (200, WHOLE)
    assert (headers["x-specgate-pool"], headers["x-specgate-speculative"]) == ("p", "off")
    assert upstream.bodies == [CHAT]


async def test_a_stream_passes_as_it_is() -> None:
    upstream = Upstream([*WORDS, STOP, DONE])
    status, _, body = await ask(gateway_of(upstream), {**CHAT, "stream": True})
    assert (status, body) == (200, b"".join([*WORDS, STOP, DONE]))


async def test_usage_that_only_the_gateway_wants_is_asked_for_and_taken_out_again() -> None:
    accounts = Accounts(RateLimitsConfig(enabled=True), connect(None, None))
    upstream = Upstream([*WORDS, STOP, USAGE, DONE])
    _, _, body = await ask(gateway_of(upstream, accounts), {**CHAT, "stream": True})
    assert upstream.bodies[0]["stream_options"] == {"include_usage": True}
    assert body == b"".join([*WORDS, STOP, DONE])
    (sums,) = accounts.tally.take().values()
    assert (sums.input, sums.output) == (5, 3)


async def test_another_api_is_decoded_first_and_encoded_last() -> None:
    upstream = Upstream([*WORDS, STOP, USAGE, DONE])
    asked = {"model": "m:nospec", "max_tokens": 9, "stream": True, "messages": [{"role": "user", "content": "hello"}]}
    status, headers, body = await ask(gateway_of(upstream), asked, "/v1/messages")
    assert status == 200
    assert headers["request-id"]
    assert upstream.paths == ["/v1/chat/completions"]
    assert (upstream.bodies[0]["model"], upstream.bodies[0]["messages"]) == ("m", CHAT["messages"])
    events = [json.loads(line[6:]) for line in body.decode().splitlines() if line.startswith("data: ")]
    text = "".join(event["delta"].get("text", "") for event in events if event["type"] == "content_block_delta")
    assert (text, events[-1]["type"]) == ("one two 3", "message_stop")


async def test_the_guard_passes_frames_between_the_meter_and_the_clients_api() -> None:
    call = {"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    frames = [
        b"data: " + json.dumps({"id": "c", "choices": [{"index": 0, **choice}]}).encode() + b"\n\n"
        for choice in ({"delta": {"tool_calls": [call]}}, {"delta": {}, "finish_reason": "tool_calls"})
    ]
    accounts = Accounts(RateLimitsConfig(enabled=True), connect(None, None))
    upstream = Upstream([*WORDS, *frames, USAGE, DONE])
    tool = {"name": "f", "input_schema": {"type": "object"}}
    asked = {**CHAT, "max_tokens": 9, "stream": True, "tools": [tool]}
    _, _, body = await ask(gateway_of(upstream, accounts), asked, "/v1/messages")
    assert b'"partial_json":"{\\"a\\": 1}"' in body
    assert b"message_stop" in body
    (sums,) = accounts.tally.take().values()
    assert (sums.input, sums.output) == (5, 3)


async def test_a_malformed_call_of_an_earlier_turn_is_repaired_on_its_way() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": '}}
    history = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "done"},
    ]
    upstream = Upstream([WHOLE], content_type="application/json")
    await ask(gateway_of(upstream), {**CHAT, "messages": [*history, *CHAT["messages"]]})
    [sent] = upstream.bodies
    assert json.loads(sent["messages"][0]["tool_calls"][0]["function"]["arguments"]) is not None
    assert sent["messages"][1:] == [history[1], *CHAT["messages"]]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "invalid_json"),
        ({**CHAT, "model": "other"}, 404, "model_not_found"),
        ({**CHAT, "kv_transfer_params": {}}, 400, "field_not_allowed"),
    ],
)
async def test_what_is_refused_reaches_no_engine(body: Any, status: int, code: str) -> None:
    upstream = Upstream([WHOLE], content_type="application/json")
    got, _, answer = await ask(gateway_of(upstream), body)
    assert (got, json.loads(answer)["error"]["code"]) == (status, code)
    assert not upstream.bodies


async def test_nothing_is_read_for_a_caller_who_is_refused() -> None:
    def nobody(_: Mapping[str, str]) -> Any:
        raise InvalidApiKeyError("no")

    refusing = gateway_of(Upstream([WHOLE]), authenticate=nobody)
    status, _, _ = await ask(refusing, b"never read")
    assert status == 401


async def test_a_replica_serves_as_many_at_once_as_it_may() -> None:
    upstream = Upstream([WHOLE], content_type="application/json")
    upstream.waits = asyncio.Event()
    gateway = gateway_of(upstream, max_ongoing_requests=1)
    first = asyncio.create_task(ask(gateway, CHAT))
    await upstream.asked.wait()
    status, _, _ = await ask(gateway, CHAT)
    upstream.waits.set()
    assert (status, (await first)[0]) == (429, 200)
    assert (await ask(gateway, CHAT))[0] == 200


class Responder:
    """Notes in which API it is asked."""

    def __init__(self) -> None:
        self.apis: list[Api] = []

    async def respond(self, api: Api, *asgi: Any) -> None:
        self.apis.append(api)


def test_chat_and_text_completions_go_to_the_gateway_itself() -> None:
    gateway: Any = Responder()
    routes = hot_routes(gateway)
    assert routes["/v1/chat/completions"] is routes["/v1/completions"] is gateway


@pytest.mark.parametrize("path", DIALECTS)
async def test_each_request_in_another_api_has_a_translation_of_its_own(path: str) -> None:
    gateway: Any = Responder()
    app = hot_routes(gateway)[path]
    for _ in range(2):
        await app({}, None, None)  # type: ignore[arg-type]
    first, second = gateway.apis
    assert isinstance(first, DialectApi)
    assert first is not second
