"""The order in which a request's candidates are tried, and what counts as an attempt and as a retry."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import count, cycle
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from support.holds import as_hold

from policies import Candidate, Decision, RequestFeatures
from serve.config.gateway import GatewayConfig
from serve.errors import EngineError, GatewayError, OverloadedError, PoolUnavailableError, TooManyConnectionsError
from serve.load.live_load import NULL_LOAD
from serve.proxy.attempts import Attempts, Held
from serve.proxy.routed_request import Attribution, RoutedRequest
from serve.request.completion import parse
from serve.request.patch import BodyPatch
from serve.routing.fair_queue import Asker
from serve.routing.pool import Affinity, Endpoint, Hold
from serve.telemetry.instruments import Telemetry

DOWN = PoolUnavailableError("down")
FULL = OverloadedError("full")
CONFIG: dict[str, Any] = {"family": "qwen3", "grammar": "hermes"}


class Response(AbstractAsyncContextManager["Response"]):
    """An engine's response of which only the status matters."""

    def __init__(self, status: int) -> None:
        self.status = status
        self.is_stream, self.first = False, b""

    async def __aexit__(self, *_: object) -> None:
        """Does nothing."""


class Upstream:
    """Responds with the given results, one a request.

    Attributes:
        urls: Where the requests went.
    """

    def __init__(self, *results: int | GatewayError) -> None:
        self.urls: list[str] = []
        self._results: Iterator[int | GatewayError] = iter(results)

    async def post(self, endpoint: Endpoint, path: str, body: Sequence[bytes], headers: Mapping[str, str]) -> Response:
        self.urls.append(endpoint.url)
        result = next(self._results)
        if isinstance(result, GatewayError):
            raise result
        return Response(result)


class Pool:
    """A pool whose replicas are asked in turns, or with an error in place of a slot.

    Attributes:
        forgotten: Replicas that did not answer.
    """

    def __init__(self, name: str, error: GatewayError | None = None, replicas: int = 1) -> None:
        self.forgotten: list[str] = []
        self._error = error
        self.full = error is not None
        self.ready = not self.full
        self.head_start_s = 0.0
        self.delay_s = 0.0
        self.replicas = replicas
        self._urls = cycle([name, *(f"{name}{number}" for number in range(2, replicas + 1))])

    @as_hold
    @asynccontextmanager
    async def reserve(self, affinity: Affinity, asker: Asker) -> AsyncIterator[Endpoint]:
        if self._error is not None:
            raise self._error
        await asyncio.sleep(self.delay_s)
        yield Endpoint(next(self._urls), None)

    def forget(self, endpoint: Endpoint) -> None:
        self.forgotten.append(endpoint.url)


class Rig:
    """Attempts over fakes.

    Attributes:
        tried: The pools that were tried.
    """

    def __init__(
        self,
        upstream: Upstream,
        *pools: str,
        full: tuple[str, ...] = (),
        max_attempts: int = 3,
        replicas: int = 1,
        opt_out: bool = False,
    ) -> None:
        remote = {name: {"kind": "remote", "url": "http://unused", "facts": {"method": "none"}} for name in pools}
        config = GatewayConfig.parse(
            {"models": {"m": {**CONFIG, "pools": remote}}, "limits": {"max_attempts": max_attempts}}
        )
        self.tried: list[str] = []
        self.attribution = Attribution(reasons=("canary",), headers={b"x-specgate-reasons": b"canary"})
        self.pools = {name: Pool(name, FULL if name in full else None, replicas) for name in pools}
        self._candidates = tuple(
            Candidate(name, opt_out=each, speculative=False) for name in pools for each in (False, True)[: 1 + opt_out]
        )
        self.spans = InMemorySpanExporter()
        self._telemetry = Telemetry({}, self.spans)
        self._attempts = Attempts(
            config,
            {("m", name): pool for name, pool in self.pools.items()},
            upstream,
            self._telemetry,
            NULL_LOAD,  # type: ignore[arg-type, misc]
        )

    @asynccontextmanager
    async def first_response(self, *, stream: bool = False) -> AsyncIterator[tuple[str, int]]:
        body = b'{"model":"m"}'
        decision = Decision("m", (), candidates=self._candidates)
        request = RoutedRequest(
            path="/p",
            headers={},
            request_id="id",
            body=body,
            patch=BodyPatch(),
            parsed=parse(body),
            features=RequestFeatures("m", stream=stream),
            decision=decision,
            guarded=False,
            attempt_numbers=count(1),
            attribution=self.attribution,
        )
        async with Held() as held:
            attempt = await self._attempts.first_response(
                request, self._candidates, held, lambda candidate: self.tried.append(candidate.pool)
            )
            yield attempt.candidate.pool, attempt.response.status

    async def result(self) -> tuple[str, int]:
        async with self.first_response() as result:
            return result

    def sent(self) -> list[ReadableSpan]:
        """The spans of the requests to engines."""
        self._telemetry.shutdown()
        return [span for span in self.spans.get_finished_spans() if span.kind is SpanKind.CLIENT]

    @property
    def retries(self) -> int:
        return int(sum(value for _, _, value in self._telemetry.metrics.collect(frozenset({"specgate_retries_total"}))))


async def test_two_replicas_of_the_first_pool_are_tried_then_the_others() -> None:
    rig = Rig(Upstream(DOWN, 500, 200), "a", "b", replicas=2)
    assert await rig.result() == ("b", 200)
    assert rig.tried == ["a", "a", "b"]
    assert set(rig.pools["a"].forgotten) == {"a", "a2"}, "another one has answered, so it was not the request"
    assert rig.pools["b"].forgotten == []


@pytest.mark.parametrize(("replicas", "tried"), [(1, ["a", "b"]), (2, ["a", "a", "b"]), (8, ["a", "a", "b"])])
@pytest.mark.parametrize("failure", [DOWN, 500, 502, 503, 504])
async def test_a_pool_whose_engines_have_died_does_not_take_every_try_from_another(
    replicas: int, tried: list[str], failure: int | GatewayError
) -> None:
    rig = Rig(Upstream(*[failure] * (len(tried) - 1), 200), "a", "b", replicas=replicas, opt_out=True)
    assert await rig.result() == ("b", 200)
    assert rig.tried == tried


async def test_the_log_says_where_each_try_went_and_what_became_of_it(caplog: pytest.LogCaptureFixture) -> None:
    refused = PoolUnavailableError("down")
    refused.__cause__ = ConnectionRefusedError("Connect call failed")
    rig = Rig(Upstream(refused, 500, DOWN), "a", "b", replicas=2)
    with pytest.raises(PoolUnavailableError, match=r"^down$"):
        async with rig.first_response():
            pass
    told = ["m/a: a: Connect call failed", "m/a: a2: the engine answered 500", "m/b: b: down"]
    assert [record.getMessage() for record in caplog.records] == told


async def test_a_pool_of_one_replica_is_asked_again_after_the_others() -> None:
    rig = Rig(Upstream(DOWN, 500, 200), "a", "b")
    assert await rig.result() == ("a", 200)
    assert rig.tried == ["a", "b", "a"]


async def test_one_candidate_and_two_failures_are_one_retry() -> None:
    rig = Rig(Upstream(DOWN, DOWN), "a")
    with pytest.raises(PoolUnavailableError):
        await rig.result()
    assert rig.tried == ["a", "a"]
    assert rig.retries == 1


async def test_a_failure_with_nothing_left_to_try_is_no_retry() -> None:
    upstream = Upstream(DOWN)
    rig = Rig(upstream, "a", max_attempts=1)
    with pytest.raises(PoolUnavailableError):
        await rig.result()
    assert upstream.urls == ["a"]
    assert rig.retries == 0


async def test_a_full_pool_is_tried_once_and_is_no_retry_unless_another_follows() -> None:
    alone = Rig(Upstream(), "a", full=("a",))
    with pytest.raises(OverloadedError):
        await alone.result()
    assert (alone.tried, alone.retries) == (["a"], 0)
    followed = Rig(Upstream(200), "a", "b", full=("a",), max_attempts=1)
    assert await followed.result() == ("b", 200)
    assert (followed.tried, followed.retries) == (["a", "b"], 1)


@pytest.mark.parametrize(("full", "reasons"), [((), "canary"), (("a",), "canary,free-slot")])
async def test_a_request_that_another_pool_took_says_that_it_had_the_free_slot(
    full: tuple[str, ...], reasons: str
) -> None:
    rig = Rig(Upstream(200), "a", "b", full=full)
    await rig.result()
    rig.sent()
    assert rig.attribution.headers[b"x-specgate-reasons"] == reasons.encode()
    (slot,) = [span for span in rig.spans.get_finished_spans() if span.name.endswith("slot")]
    attributes = slot.attributes or {}
    assert attributes["specgate.pool"] == ("b" if full else "a")
    assert attributes.get("specgate.reasons") == (("free-slot",) if full else None)


async def test_the_last_failed_response_is_passed_on() -> None:
    rig = Rig(Upstream(500, 502, 503), "a", "b", "c")
    assert await rig.result() == ("c", 503)
    assert rig.retries == 2


async def test_an_engine_that_has_another_model_now_is_left_for_one_that_has_the_model() -> None:
    rig = Rig(Upstream(404, 200), "a", replicas=2)
    assert await rig.result() == ("a", 200)
    assert rig.pools["a"].forgotten == ["a"], "it is looked into"


async def test_what_no_engine_has_is_told_so_and_is_no_engines_fault() -> None:
    rig = Rig(Upstream(404, 404, 404), "a", "b", replicas=2)
    assert (await rig.result())[1] == 404
    assert rig.pools["a"].forgotten == rig.pools["b"].forgotten == []
    alone = Upstream(404)
    assert await Rig(alone, "a").result() == ("a", 404)
    assert alone.urls == ["a"], "it would say so again"


async def test_a_gateway_without_files_for_a_connection_blames_no_engine() -> None:
    upstream = Upstream(TooManyConnectionsError("no files"))
    rig = Rig(upstream, "a", "b", replicas=2)
    with pytest.raises(TooManyConnectionsError):
        await rig.result()
    assert upstream.urls == ["a"], "another one is as far"
    assert rig.pools["a"].forgotten == []


async def test_what_fails_after_the_response_has_begun_is_not_retried() -> None:
    upstream = Upstream(200)
    rig = Rig(upstream, "a", "b")
    with pytest.raises(EngineError):
        async with rig.first_response():
            raise EngineError("broke off")
    assert upstream.urls == ["a"]
    assert rig.retries == 0


async def test_a_busy_engine_s_refusal_goes_to_another_pool_before_it_reaches_the_client() -> None:
    upstream = Upstream(429, 200)
    rig = Rig(upstream, "a", "b")
    assert await rig.result() == ("b", 200)
    assert upstream.urls == ["a", "b"], "not the same busy pool again"


async def test_the_refusal_of_the_last_busy_engine_reaches_the_client() -> None:
    alone = Upstream(429)
    assert await Rig(alone, "a").result() == ("a", 429)
    assert alone.urls == ["a"]
    assert await Rig(Upstream(429, 429), "a", "b").result() == ("b", 429)


async def test_each_attempt_has_a_span_and_that_of_a_failed_one_says_why() -> None:
    rig = Rig(Upstream(DOWN, 503, 200), "a", "b")
    await rig.result()
    down, busy, served = rig.sent()
    assert [span.status.status_code for span in (down, busy)] == [StatusCode.ERROR, StatusCode.ERROR]
    kinds = [(span.attributes or {}).get("error.type") for span in (down, busy, served)]
    assert kinds == ["pool_unavailable", "503", None]
    assert (served.status.status_code, served.status.description) == (StatusCode.UNSET, None)


async def test_a_request_that_waits_for_a_slot_counts_in_the_pool_that_had_one(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[tuple[float, str, str, str]] = []
    monkeypatch.setattr(Telemetry, "waited", lambda _, *wait: waits.append(wait))
    rig = Rig(Upstream(200), "a")
    rig.pools["a"].delay_s = 0.02
    await rig.result()
    ((waited_s, *labels),) = waits
    assert waited_s > 0.01
    assert labels == ["m", "a", "standard"]


@pytest.mark.parametrize(("stream", "begun_before_it_is_sent"), [(True, False), (False, True)])
async def test_the_slot_is_told_when_a_stream_begins_and_of_a_whole_answer_that_nobody_will_know(
    stream: bool, begun_before_it_is_sent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(Hold, "begun", lambda _: told.append("begun"))
    upstream = Upstream(200)
    post = upstream.post
    monkeypatch.setattr(upstream, "post", lambda *given: (told.append("posted"), post(*given))[1])
    async with Rig(upstream, "a").first_response(stream=stream):
        assert "begun" in told[told.index("posted") :]
    assert (told[0] == "begun") is begun_before_it_is_sent
