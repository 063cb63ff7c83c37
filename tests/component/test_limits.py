"""Limits and usage over real HTTP: what clients see, what engines are sent, and what is booked."""

import asyncio
import json
from typing import Any

import httpx
import pytest
from support.clock import until
from support.engines import Engine, chunk, frame, streaming
from support.stack import Stack, running

from serve.config.gateway import GatewayConfig
from serve.errors import SharedStateError
from serve.limits.accounts import Accounts
from serve.limits.actor import LedgerActor
from serve.routing.pool import Endpoint
from serve.routing.remote_pool import RemotePool
from serve.shared.link import Link, LocalLink

DONE = b"data: [DONE]\n\n"
USAGE = {"prompt_tokens": 10, "completion_tokens": 20, "total_tokens": 30}
WORDS = [frame(chunk({"content": word})) for word in ("It ", "is ", "sunny.")]
TELLS = frame(json.dumps({"id": "c", "choices": [], "usage": USAGE}, separators=(",", ":")))
HELLO = {"model": "m", "max_tokens": 50, "messages": [{"role": "user", "content": "hello"}]}
STREAM = {**HELLO, "stream": True}


async def _answer(engine: Engine, send: Any, body: bytes) -> None:
    request = json.loads(body)
    if not request.get("stream"):
        content = json.dumps({"id": "c", "choices": [{"index": 0, "message": {"content": "hi"}}], "usage": USAGE})
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": content.encode()})
        return
    reply = [TELLS] if request.get("stream_options", {}).get("include_usage") else []
    await streaming([*WORDS, frame(chunk({}, "stop")), *reply, DONE])._handler(engine, send, body)


class DeadLedger:
    """A ledger that can't be reached."""

    async def call(self, method: str, *arguments: Any) -> Any:
        raise SharedStateError("The ledger is away.")


class HangingLedger:
    """A ledger that does not answer."""

    async def call(self, method: str, *arguments: Any) -> Any:
        await asyncio.sleep(60)


class Rig:
    """A gateway with limits.

    Args:
        limits: Of everybody together.
        ledger: Replaces the one in this process.
    """

    def __init__(self, limits: dict[str, Any], ledger: Link | None = None, **more: Any) -> None:
        self.actor = LedgerActor(None, 0.0)
        pool = {"kind": "remote", "url": "http://127.0.0.1:1", "facts": {"method": "none"}}
        self.config = {
            "models": {"m": {"family": "qwen", "version": "3", "grammar": "hermes", "pools": {"p": pool}}},
            "rate_limits": {"enabled": True, "default": limits, **more},
        }
        parsed = GatewayConfig.parse(self.config)
        self.accounts = Accounts(parsed.rate_limits, ledger or LocalLink(self.actor))
        self.engine = Engine(_answer)

    def running(self) -> Any:
        return running(self.config, {("m", "p"): self.engine}, accounts=self.accounts)

    async def usage(self) -> dict[str, Any]:
        await self.accounts.sync()
        (row,) = self.actor.usage(["tenant", "model", "pool"])
        return row


async def post(stack: Stack, body: dict[str, Any], path: str = "chat/completions") -> httpx.Response:
    async with httpx.AsyncClient() as client:
        return await client.post(f"{stack.url}/v1/{path}", json=body)


@pytest.mark.parametrize("body", [HELLO, STREAM, {**STREAM, "stream_options": {"include_usage": True}}])
async def test_every_answer_is_booked_with_the_usage_that_the_engine_tells(body: dict[str, Any]) -> None:
    rig = Rig({})
    async with rig.running() as stack:
        await post(stack, body)
        row = await rig.usage()
    assert (row["tenant"], row["model"], row["pool"]) == ("default", "m", "p")
    assert (row["requests"], row["input"], row["output"], row["unsettled"], row["errors"]) == (1, 10, 20, 0, 0)


@pytest.mark.parametrize("options", [None, {"include_usage": False}, {}])
async def test_clients_that_did_not_ask_for_usage_do_not_get_it(options: dict[str, Any] | None) -> None:
    rig = Rig({})
    async with rig.running() as stack:
        answer = await post(stack, STREAM if options is None else {**STREAM, "stream_options": options})
    assert answer.content == b"".join([*WORDS, frame(chunk({}, "stop")), DONE])
    assert json.loads(rig.engine.requests[0][1])["stream_options"]["include_usage"] is True


@pytest.mark.parametrize("limited", [True, False])
@pytest.mark.parametrize("path", ["chat/completions", "completions"])
@pytest.mark.parametrize("options", [{}, {"stream_options": {"include_usage": False}}])
async def test_what_an_engine_tells_unasked_reaches_no_client_whether_or_not_somebody_counts(
    options: dict[str, Any], path: str, limited: bool
) -> None:
    """As vLLM does with `--enable-force-include-usage`. Clients failed at a chunk without choices."""
    rig = Rig({})
    rig.engine = streaming([*WORDS, frame(chunk({}, "stop")), TELLS, DONE])
    async with rig.running() if limited else running(rig.config, {("m", "p"): rig.engine}) as stack:
        answer = await post(stack, {**STREAM, "prompt": "hello", **options}, path)
    assert answer.content == b"".join([*WORDS, frame(chunk({}, "stop")), DONE])


@pytest.mark.parametrize("limited", [True, False])
@pytest.mark.parametrize("asked", [True, 1, "true"])
async def test_clients_that_asked_for_usage_get_it(asked: object, limited: bool) -> None:
    """In words that vLLM and SGLang read as a request for it, too."""
    rig = Rig({})
    rig.engine = streaming([*WORDS, frame(chunk({}, "stop")), TELLS, DONE])
    async with rig.running() if limited else running(rig.config, {("m", "p"): rig.engine}) as stack:
        answer = await post(stack, {**STREAM, "stream_options": {"include_usage": asked}})
    assert TELLS in answer.content


async def test_text_completions_are_booked_too() -> None:
    rig = Rig({})
    async with rig.running() as stack:
        await post(stack, {"model": "m", "prompt": "hello", "max_tokens": 50}, "completions")
        row = await rig.usage()
    assert (row["input"], row["output"]) == (10, 20)


async def test_requests_of_another_api_are_booked_too() -> None:
    rig = Rig({})
    async with rig.running() as stack:
        await post(stack, {"model": "m", "input": "hello"}, "responses")
        row = await rig.usage()
    assert (row["input"], row["output"]) == (10, 20)


async def test_a_client_that_leaves_is_charged_for_what_it_saw() -> None:
    async def endless(engine: Engine, send: Any, body: bytes) -> None:
        await streaming(WORDS * 10, hang=True)._handler(engine, send, body)

    rig = Rig({})
    rig.engine = Engine(endless)
    async with rig.running() as stack, httpx.AsyncClient() as client:
        async with client.stream("POST", f"{stack.url}/v1/chat/completions", json=STREAM) as answer:
            seen = 0
            async for line in answer.aiter_lines():
                seen += line.startswith("data")
                if seen == 30:
                    break
        for _ in range(200):
            await asyncio.sleep(0.02)
            await rig.accounts.sync()
            if rig.accounts.tally.tokens["default", "m", "output"]:
                break
        row = await rig.usage()
    assert (row["output"], row["unsettled"]) == (30, 1)
    assert row["input"] > 0


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_the_queue_is_not_charged_for_an_engine_that_was_not_there(stream: bool) -> None:
    rig = Rig({})
    settings = rig.config["models"]["m"]
    settings["pools"] = dict.fromkeys(("gone", "full"), settings["pools"]["p"])
    gone, full = (RemotePool(Endpoint("http://127.0.0.1:1", None), {}, slots=slots) for slots in (9, 1))
    routes = {("m", "gone"): gone, ("m", "full"): full}
    async with running(rig.config, {}, routes, accounts=rig.accounts) as stack, full.reserve():
        asking = asyncio.ensure_future(post(stack, {**HELLO, "stream": stream}))
        await until(lambda: full.occupancy().waiting and not gone.occupancy().held)
        asking.cancel()
        await until(lambda: not full.occupancy().waiting)
    row = await rig.usage()
    assert (row["requests"], row["input"], row["output"]) == (1, 0, 0)


async def test_answers_tell_what_is_left() -> None:
    rig = Rig({"requests_per_minute": 60, "tokens_per_minute": 60_000})
    async with rig.running() as stack:
        await rig.accounts.sync()
        answer = await post(stack, HELLO)
    assert answer.headers["x-ratelimit-limit-requests"] == "60"
    assert answer.headers["x-ratelimit-remaining-requests"] == "29"  # of a burst of 30 s
    assert answer.headers["x-ratelimit-limit-tokens"] == "60000"
    assert 29_000 < int(answer.headers["x-ratelimit-remaining-tokens"]) < 30_000
    assert answer.headers["x-ratelimit-reset-requests"].endswith("s")


async def test_requests_over_a_limit_are_refused_with_the_time_to_wait() -> None:
    rig = Rig({"requests_per_minute": 2})
    async with rig.running() as stack:
        await rig.accounts.sync()
        first, second = await post(stack, HELLO), await post(stack, HELLO)
    assert first.status_code == 200
    assert second.status_code == 429
    assert second.json()["error"]["code"] == "rate_limit_exceeded"
    assert 25 <= int(second.headers["retry-after"]) <= 30
    assert second.headers["x-ratelimit-remaining-requests"] == "0"
    assert len(rig.engine.requests) == 1


async def test_what_was_reserved_and_not_used_is_given_back() -> None:
    """Ten answers of 50 weighted tokens fit into a bucket that holds less than ten reservations."""
    rig = Rig({"tokens_per_minute": 1200}, estimate="strict", burst_s=30)
    async with rig.running() as stack:
        await rig.accounts.sync()
        answers = [await post(stack, HELLO) for _ in range(10)]
    assert [answer.status_code for answer in answers] == [200] * 10


async def test_a_seat_is_free_again_when_a_request_is_over() -> None:
    rig = Rig({"concurrency": 1})
    async with rig.running() as stack:
        await rig.accounts.sync()
        answers = [await post(stack, HELLO) for _ in range(3)]
        together = await asyncio.gather(*(post(stack, STREAM) for _ in range(8)))
    assert {answer.status_code for answer in answers} == {200}
    assert {answer.status_code for answer in together} == {200, 429}


async def test_a_spent_quota_is_no_matter_of_trying_again() -> None:
    rig = Rig({"tokens_per_month": 40})
    async with rig.running() as stack:
        first, second = await post(stack, HELLO), await post(stack, HELLO)
        await rig.accounts.sync()
        third = await post(stack, HELLO)
    assert first.status_code == 200
    for refused in (second, third):
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "insufficient_quota"
        assert refused.headers["x-should-retry"] == "false"


async def test_limits_in_shadow_refuse_nothing_and_count() -> None:
    rig = Rig({"requests_per_minute": 2, "tokens_per_month": 1, "shadow": True})
    async with rig.running() as stack:
        await rig.accounts.sync()
        answers = [await post(stack, HELLO) for _ in range(3)]
    assert {answer.status_code for answer in answers} == {200}
    assert rig.accounts.tally.refused["default", "requests", "shadow"] == 2
    assert rig.accounts.tally.refused["default", "month", "shadow"] == 2


@pytest.mark.parametrize("ledger", [DeadLedger(), HangingLedger()])
async def test_without_its_ledger_a_replica_goes_on_with_a_share(ledger: Any) -> None:
    rig = Rig({"requests_per_minute": 600, "tokens_per_minute": 600_000, "concurrency": 10}, ledger)
    async with rig.running() as stack:
        answers = [await post(stack, HELLO) for _ in range(5)]
    assert {answer.status_code for answer in answers} == {200}


async def test_without_its_ledger_limits_still_hold() -> None:
    rig = Rig({"requests_per_minute": 20}, DeadLedger())  # a burst of 10, and half of that without the ledger
    async with rig.running() as stack:
        answers = [await post(stack, HELLO) for _ in range(12)]
    assert [answer.status_code for answer in answers].count(200) in (5, 6)


async def test_a_failed_request_costs_nothing_but_itself() -> None:
    async def fail(engine: Engine, send: Any, body: bytes) -> None:
        await send({"type": "http.response.start", "status": 400, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    rig = Rig({})
    rig.engine = Engine(fail)
    async with rig.running() as stack:
        await post(stack, HELLO)
        row = await rig.usage()
    assert (row["requests"], row["input"], row["output"], row["errors"]) == (1, 0, 0, 1)


async def test_counting_tokens_is_a_request_that_spends_none() -> None:
    """Without a limit, whoever may infer could keep engines busy with counting."""
    rig = Rig({"requests_per_minute": 1, "tokens_per_minute": 600})
    async with rig.running() as stack:
        first = await post(stack, HELLO, "messages/count_tokens")
        second = await post(stack, HELLO, "messages/count_tokens")
    assert "x-ratelimit-remaining-tokens" not in first.headers, "none were asked of the ledger, so nobody knows"
    assert (second.status_code, second.json()["error"]["type"]) == (429, "rate_limit_error")
    assert int(second.headers["retry-after"]) > 0
    assert "x-specgate-estimate" not in second.headers, "an estimate costs the gateway's own time"
    assert len(rig.engine.requests) == 1


async def test_counting_tokens_holds_a_seat_until_it_is_over() -> None:
    rig = Rig({"concurrency": 1})
    async with rig.running() as stack:
        answers = [await post(stack, HELLO, "messages/count_tokens") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200] * 3
